"""BERT's tokens: text is split into words and signs, and each word into the longest pieces that the vocabulary has.

The vocabulary is the `vocab.txt` that comes with a trained model: one token a line, its number the line's; pieces inside a word begin with
`##`. Rules: those of the published models (Devlin et al. 2018, the tokeniser of google-research/bert), by default without case.
"""

import unicodedata
from dataclasses import dataclass
from pathlib import Path

PADDING, UNKNOWN, START, SEPARATOR = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
#: Words longer than this are unknown as a whole.
LONGEST_WORD = 100
#: Chinese characters, each a word of its own: the CJK blocks of Unicode that the published tokeniser lists.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, or a sign.

    Attributes:
        text: As the tokeniser sees it: without case and accents, unless it keeps them.
        start, end: Where it stands in the text itself.
    """

    text: str
    start: int
    end: int


class WordPiece:
    """A tokeniser over a vocabulary."""

    def __init__(self, tokens: list[str], *, keeps_case: bool = False) -> None:
        """`tokens` in the order of their numbers.

        Raises:
            ValueError: a special token is missing.
        """
        self._numbers = {token: number for number, token in enumerate(tokens)}
        self._keeps_case = keeps_case
        missing = [token for token in (PADDING, UNKNOWN, START, SEPARATOR) if token not in self._numbers]
        if missing:
            raise ValueError(f"the vocabulary of {len(tokens)} tokens lacks {', '.join(missing)}")

    @classmethod
    def from_file(cls, path: Path, *, keeps_case: bool = False) -> "WordPiece":
        """The tokeniser of a vocabulary file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no vocabulary.
        """
        try:
            return cls(path.read_text(encoding="utf-8").splitlines(), keeps_case=keeps_case)
        except ValueError as error:  # also of UTF-8
            raise ValueError(f"{path}: {error}") from error

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, token: str) -> int:
        """The number of a token that the vocabulary has."""
        return self._numbers[token]

    def words(self, text: str) -> list[Word]:
        """`text` in words and signs."""
        words: list[Word] = []
        is_open = False
        for at, character in enumerate(text):
            plain = self._plain(character)
            if _is_space(character):
                is_open = False
            elif plain and (_is_sign(plain) or _is_ideograph(plain)):
                words.append(Word(plain, at, at + 1))
                is_open = False
            elif is_open:
                words[-1] = Word(words[-1].text + plain, words[-1].start, at + 1)
            elif plain:
                words.append(Word(plain, at, at + 1))
                is_open = True
        return words

    def pieces(self, word: str) -> list[int]:
        """The numbers of a word's pieces, the longest that fit from the left; that of `[UNK]` where some part fits none."""
        unknown = [self._numbers[UNKNOWN]]
        if len(word) > LONGEST_WORD:
            return unknown
        found = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return unknown
        return found

    def _plain(self, character: str) -> str:
        """`character` without what the vocabulary does not distinguish; nothing of control characters and, without case, of accents."""
        if character in "\0\ufffd" or (unicodedata.category(character).startswith("C") and not _is_space(character)):
            return ""
        if self._keeps_case:
            return character
        apart = unicodedata.normalize("NFD", character.lower())
        return "".join(part for part in apart if unicodedata.category(part) != "Mn")


def _is_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def _is_sign(text: str) -> bool:
    """Punctuation, and every other ASCII character that is no letter or digit."""
    return len(text) == 1 and (unicodedata.category(text).startswith("P") or (text.isascii() and not text.isalnum()))


def _is_ideograph(text: str) -> bool:
    return len(text) == 1 and any(low <= ord(text) <= high for low, high in _IDEOGRAPHS)
