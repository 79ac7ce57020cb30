"""Numbers in other digits: 2026 -> the same in Arabic, Persian, Devanagari, Bengali or Thai digits,
and in Chinese numerals.

Chinese dates read the year digit by digit and the rest as numbers: 17 is ten-seven, 20 two-ten.
"""

from __future__ import annotations

from weft.training.dates.write import Piece

HAN = "\u3007\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d"
"""0 to 9."""
HAN_TEN = "\u5341"


def local_digits(text: str, zero: int) -> str:
    """Each digit 0-9 replaced by the one as far behind `zero`."""
    return text.translate({ord("0") + digit: zero + digit for digit in range(10)})


def han_number(number: int) -> str:
    """1 to 99 as Chinese and Japanese write it."""
    tens, ones = divmod(number, 10)
    head = (HAN[tens] if tens > 1 else "") + HAN_TEN if tens else ""
    return head + (HAN[ones] if ones else "")


def han_pieces(pieces: list[Piece]) -> list[Piece]:
    """A date in Chinese numerals."""
    return [han_piece(piece) for piece in pieces]


def han_piece(piece: Piece) -> Piece:
    if piece.kind == "year":
        return Piece("".join(HAN[int(digit)] for digit in piece.text), "year")
    return Piece(han_number(int(piece.text)), "number") if piece.kind == "number" else piece
