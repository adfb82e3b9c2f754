"""From what a manifest says (`command`, `args`, `env`, a shell script) to the words that a program would get.

Enough of a POSIX shell to read launch scripts: quotes, escapes, comments, line continuations, `;` `&&` `||` `|`,
assignments, `export`, `$NAME`, `${NAME}`, `${NAME:-default}`. Nothing is run: `$(command)` and variables without a
value stay as they are written, so that a reader sees what was not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_UNKNOWN = re.compile(r"\$\{[^}]*\}|\$\([^)]*\)|\$[A-Za-z_]\w*|`[^`]*`|\{\{[^}]*\}\}|<[A-Za-z][\w .-]*>")


def unresolved(text: str) -> tuple[str, ...]:
    """Parts of a value that only the running system knows.

    >>> unresolved("--model=${MODEL}"), unresolved('{"a": 1}')
    (('${MODEL}',), ())
    """
    return tuple(_UNKNOWN.findall(text))


def kubernetes_expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet replaces it; `$$` is a dollar; unknown names stay.

    >>> kubernetes_expand("--tp=$(TP) $$(TP) $(X) $$@", {"TP": "4"})
    '--tp=4 $(TP) $(X) $@'
    """
    return re.sub(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)", lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def compose_expand(text: str, env: Mapping[str, str]) -> str:
    """`${NAME:-default}` as Compose fills it in from the environment file; `$$` is a dollar.

    >>> compose_expand("${MODEL:-llama} $$HOME ${TP}", {"TP": "2"})
    'llama $HOME 2'
    """

    def value(m: re.Match[str]) -> str:
        if m[0] == "$$":
            return "$"
        name, default = m[1] or m[4], m[3]
        found = env.get(name)
        if found is not None and (found or m[2] not in (":-",)):
            return found
        return default if m[2] in (":-", "-") else m[0]

    return re.sub(r"\$\$|\$\{([A-Za-z_]\w*)(?:(:-|-|:\?|\?)([^}]*))?\}|\$([A-Za-z_]\w*)", value, text)


def split_script(script: str, env: Mapping[str, str], arguments: Sequence[str] = ()) -> list[list[str]]:
    """The simple commands of a shell script, variables filled in where the script or `env` sets them.

    >>> split_script('export TP=4; exec vllm serve "$M" --tp $TP \\\\\\n  $EXTRA # note', {"EXTRA": "--a 1"})
    [['export', 'TP=4'], ['exec', 'vllm', 'serve', '$M', '--tp', '4', '--a', '1']]
    """
    known = dict(env) | {str(i): a for i, a in enumerate(arguments)}
    return _Reader(script, known).commands()


class _Reader:
    """One pass over a script. `word` is None between words: an empty quoted string is a word too."""

    def __init__(self, script: str, env: dict[str, str]) -> None:
        self.text = script
        self.env = env
        self.found: list[list[str]] = []
        self.words: list[str] = []
        self.word: str | None = None

    def commands(self) -> list[list[str]]:
        text, i = self.text, 0
        while i < len(text):
            c = text[i]
            if text.startswith("\\\n", i):
                i += 2
            elif c == "\\" and i + 1 < len(text):
                self._add(text[i + 1])
                i += 2
            elif c == "'":
                end = text.find("'", i + 1)
                end = len(text) if end < 0 else end
                self._add(text[i + 1 : end])
                i = end + 1
            elif c == '"':
                i = self._double(i + 1)
            elif c == "$":
                value, i, known = self._variable(i)
                self._expand(value) if known else self._add(value)
            elif c == "`":
                end = text.find("`", i + 1)
                end = len(text) - 1 if end < 0 else end
                self._add(text[i : end + 1])
                i = end + 1
            elif c == "#" and self.word is None:
                end = text.find("\n", i)
                i = len(text) if end < 0 else end
            elif c in " \t\r":
                self._end_word()
                i += 1
            elif c in "\n;|&":
                i = self._operator(i)
            elif c in "<>":
                i = self._redirection(i)
            elif c in "()" and self.word is None:
                self._end_command()
                i += 1
            else:
                self._add(c)
                i += 1
        self._end_command()
        return self.found

    def _add(self, text: str) -> None:
        self.word = (self.word or "") + text

    def _expand(self, value: str) -> None:
        """An unquoted variable is split into words."""
        parts = re.split(r"\s+", value)
        for n, part in enumerate(parts):
            if n:
                self._end_word()
            if part:
                self._add(part)

    def _double(self, i: int) -> int:
        text = self.text
        if text.startswith('$@"', i) and self.word is None:
            # "$@" is every argument as a word of its own, and none at all where there are none.
            self.words += self._arguments()
            return i + 3
        self._add("")
        while i < len(text) and text[i] != '"':
            if text[i] == "\\" and i + 1 < len(text) and text[i + 1] in '"\\$`\n':
                self._add("" if text[i + 1] == "\n" else text[i + 1])
                i += 2
            elif text[i] == "$":
                value, i, _ = self._variable(i)
                self._add(value)
            else:
                self._add(text[i])
                i += 1
        return i + 1

    def _variable(self, i: int) -> tuple[str, int, bool]:
        """(value, where to go on, whether it was known)."""
        text = self.text
        if text.startswith("${", i):
            end = text.find("}", i)
            end = len(text) - 1 if end < 0 else end
            whole = text[i : end + 1]
            m = re.match(r"^\$\{(\w+)(?:(:?[-=+?])(.*))?\}$", whole, re.DOTALL)
            if m is None:
                return whole, end + 1, False
            value = self.env.get(m[1])
            if m[2] and m[2].endswith("+"):
                return (m[3] if value else ""), end + 1, True
            if value is None or (value == "" and m[2] in (":-", ":=")):
                return (m[3], end + 1, True) if m[2] in (":-", "-", ":=", "=") else (whole, end + 1, False)
            return value, end + 1, True
        if text.startswith("$(", i):
            depth, j = 0, i + 1
            while j < len(text):
                depth += (text[j] == "(") - (text[j] == ")")
                if depth == 0:
                    break
                j += 1
            return text[i : j + 1], j + 1, False
        m2 = _NAME.match(text, i + 1) or re.compile(r"[0-9@*#?]").match(text, i + 1)
        if m2 is None:
            return "$", i + 1, False
        if m2[0] in ("@", "*"):
            return " ".join(self._arguments()), m2.end(), True
        value = self.env.get(m2[0])
        return (f"${m2[0]}", m2.end(), False) if value is None else (value, m2.end(), True)

    def _arguments(self) -> list[str]:
        """$1, $2, ..."""
        return [self.env[k] for k in sorted((k for k in self.env if k.isdigit() and k != "0"), key=int)]

    def _operator(self, i: int) -> int:
        # `2>&1` is a redirection and was eaten there; a lone & ends a command as ; does
        self._end_command()
        while i < len(self.text) and self.text[i] in "\n;|&":
            i += 1
        return i

    def _redirection(self, i: int) -> int:
        """Skip `> file`, `2>&1`, `<< EOF` up to the end of its word."""
        if self.word is not None and self.word.isdigit():
            self.word = None
        self._end_word()
        while i < len(self.text) and self.text[i] in "<>&":
            i += 1
        while i < len(self.text) and self.text[i] in " \t":
            i += 1
        while i < len(self.text) and self.text[i] not in " \t\n;|&<>":
            i += 1
        return i

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
            self.word = None

    def _end_command(self) -> None:
        self._end_word()
        words, self.words = self.words, []
        names = words[1:] if words[:1] in (["export"], ["local"], ["declare"]) else words
        pairs = [_ASSIGNMENT.match(w) for w in names]
        if names and all(pairs):
            for m in pairs:
                assert m is not None
                self.env[m[1]] = m[2]
        if words:
            self.found.append(words)


def commands(command: Sequence[str], args: Sequence[str], env: Mapping[str, str]) -> list[list[str]]:
    """Every simple command that a container's `command` and `args` run; scripts of `sh -c` are opened.

    >>> commands(["/bin/bash", "-lc"], ["pip list; vllm serve m"], {})
    [['pip', 'list'], ['vllm', 'serve', 'm']]
    """
    words = [*command, *args]
    for i, word in enumerate(words[:4]):
        if word.rsplit("/", 1)[-1] not in _SHELLS:
            continue
        for j in range(i + 1, min(i + 4, len(words))):
            if re.fullmatch(r"-[a-z]*c[a-z]*", words[j]) and j + 1 < len(words):
                return [c for inner in split_script(words[j + 1], env, words[j + 2 :]) for c in _nested(inner, env)]
    return [words] if words else []


def _nested(words: list[str], env: Mapping[str, str]) -> list[list[str]]:
    """A shell inside a shell, once; anything deeper is read as it stands."""
    first = [w.rsplit("/", 1)[-1] for w in words[:3]]
    return commands(words, (), env) if any(w in _SHELLS for w in first) and "-c" in words else [words]
