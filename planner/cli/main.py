"""The `plan` command: solving is the default, everything else a subcommand loaded on use."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from planner.errors import Exit, UserError, did_you_mean

# Subcommand -> module that holds a click command of the same name; nothing is imported before it is asked for.
COMMANDS = {
    "assess": "planner.cli.assess",
    "catalog": "planner.cli.catalog",
    "check": "planner.cli.tree",
    "diff": "planner.cli.diff",
    "estimate": "planner.cli.estimate",
    "explain": "planner.cli.explain",
    "frontier": "planner.cli.frontier",
    "render": "planner.cli.tree",
    "review": "planner.cli.review",
    "schema": "planner.cli.schema",
    "simulate": "planner.cli.simulate",
    "sweep": "planner.cli.sweep",
}


class Group(click.Group):
    """A click group whose subcommands are imported on use, and whose default is to solve."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            known = sorted(COMMANDS)
            raise UserError(
                "unknown-command",
                f"unknown command {args[0]!r}",
                None,
                (),
                did_you_mean(args[0], known) or (f"known: {', '.join(known)}",),
            )
        return super().resolve_command(ctx, args)


def main(argv: list[str] | None = None) -> None:
    """Run `plan` and exit with the documented code. A traceback is a bug and exits with 70."""
    from planner.cli.solve import plan

    # The matrices here are small: threads of numpy's library cost more than they bring.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = plan.main(args=argv, prog_name="plan", standalone_mode=False)
    except UserError as e:
        click.echo(_coloured(e.render()), err=True)
        raise SystemExit(int(e.exit_code)) from None
    except click.exceptions.Abort:
        raise SystemExit(130) from None
    except click.ClickException as e:
        click.echo(_coloured(_usage(e).render()), err=True)
        raise SystemExit(int(Exit.INPUT)) from None
    except BrokenPipeError:
        # The reader of our output went away (`plan ... | head`): nothing to say, nobody to say it to.
        sys.stderr.close()
        raise SystemExit(0) from None
    except Exception:  # noqa: BLE001 - the one boundary: the traceback is shown, only the exit code is ours
        import traceback

        traceback.print_exc()
        click.echo("this is a bug in the planner; please report it with the lines above", err=True)
        raise SystemExit(int(Exit.BUG)) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _usage(e: click.ClickException) -> UserError:
    """A click complaint in our own form."""
    # click lists choices on lines of their own, indented with tabs.
    message = " ".join(e.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    helps: tuple[str, ...] = ()
    if isinstance(e, click.NoSuchOption):
        near = list(e.possibilities or ())
        message = f"no such option {e.option_name}"
        helps = (f"write {' or '.join(near)}",) if near else ()
    ctx: Any = getattr(e, "ctx", None)
    name = ctx.command_path if ctx is not None else "plan"
    return UserError("usage", message, None, (), (*helps, f"see `{name} --help`"))


def _coloured(text: str) -> str:
    """Red for the error, bold for its place; click drops colour when stderr is not a terminal."""
    first, _, rest = text.partition("\n")
    head, _, message = first.partition(": ")
    return (
        click.style(head, fg="red", bold=True) + ": " + click.style(message, bold=True) + ("\n" + rest if rest else "")
    )
