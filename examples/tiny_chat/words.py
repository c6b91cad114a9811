"""The tokenizer of the tiny transformer: words and marks of its corpus. Used by the training and, copied beside it, by the model."""

import json
import re
from pathlib import Path

UNKNOWN, USER, ASSISTANT, END = "<unknown>", "<user>", "<assistant>", "<end>"
SPECIAL = (UNKNOWN, USER, ASSISTANT, END)
_WORD = re.compile(r" ?[a-z0-9']+| ?[^\sa-z0-9']")


def split(text: str) -> list[str]:
    """`text` as words, each with the space before it."""
    return _WORD.findall(text.lower())


class Tokenizer:
    """Numbers of words."""

    def __init__(self, words: list[str]) -> None:
        """`words` by number; the first ones are `SPECIAL`."""
        self.words = words
        self._numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads what `save` has written."""
        return cls(json.loads(path.read_text(encoding="utf-8"))["words"])

    def save(self, path: Path) -> None:
        """Writes the words as JSON."""
        path.write_text(json.dumps({"words": self.words}, indent=0), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """The numbers of the words of `text`."""
        return [self._numbers.get(word, 0) for word in split(text)]

    def number(self, word: str) -> int:
        """The number of one word."""
        return self._numbers[word]

    def decode(self, number: int) -> str:
        """The text of one number; specials have none, the unknown word has a mark."""
        word = self.words[number]
        return " ?" if word == UNKNOWN else "" if word in SPECIAL else word

    def conversation(self, messages: list[dict]) -> list[int]:
        """The prompt for the assistant's next message; messages of other roles than user and assistant are left out."""
        tokens: list[int] = []
        for message in messages:
            if message["role"] in ("user", "assistant"):
                content = message.get("content") or ""
                if isinstance(content, list):
                    content = " ".join(part.get("text", "") for part in content if part.get("type") == "text")
                tokens += [self.number(f"<{message['role']}>"), *self.encode(content.strip().rstrip("?")), self.number(END)]
        return [*tokens, self.number(ASSISTANT)]
