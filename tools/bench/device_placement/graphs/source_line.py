"""Text with a name and line numbers, so that whoever reads a file of others can say where it is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

from .....errors import BadInput

MAX_VALUE = 2**63 - 1  # METIS counts in 64-bit integers


@dataclass(frozen=True)
class SourceLine:
    """One line of a file, without its end."""

    file: str
    number: int
    text: str

    def make_error(self, code: str, facts: str, *, fix: str) -> BadInput:
        """Return the error that says what is wrong in this line."""
        return BadInput(code, f"{self.file}:{self.number}: {facts}", fix=fix)

    def integers(self, *, minimum: int, what: str) -> list[int]:
        """Parse the line as integers of at least `minimum`. Raises BadInput (E371, E375)."""
        out = []
        for word in self.text.split():
            if not word.removeprefix("-").isdecimal() or len(word) > 30:
                raise self.make_error("E371", f"{word!r} is not an integer, where {what} are", fix="write it as digits")
            value = int(word)
            if value < minimum or value > MAX_VALUE:
                limits = f"{minimum} to {MAX_VALUE}"
                raise self.make_error(
                    "E375", f"{value} is not from {limits}, where {what} are", fix="correct or scale it"
                )
            out.append(value)
        return out


def read_lines(text: str, file: str, *, comment: str = "") -> Iterator[SourceLine]:
    """Yield the lines of a text, without those that begin with `comment`. Raises BadInput (E370) for an empty text."""
    if not text.strip():
        raise BadInput("E370", f"{file} is empty", fix="fetch the file again")
    for number, line in enumerate(text.splitlines(), start=1):
        if not comment or not line.lstrip().startswith(comment):
            yield SourceLine(file, number, line)
