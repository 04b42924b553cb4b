"""Recordings in the form of the Free Spoken Digit Dataset, in which each digit is a tone."""

import math
import struct
import wave
from pathlib import Path

RATE = 8000
SPEAKERS = ("anna", "ben", "carl")


def write_takes(folder: Path, *, takes: int = 1, seconds: float = 0.2) -> Path:
    """Write recordings of all digits by all speakers, whose voices differ in loudness."""
    folder.mkdir(parents=True, exist_ok=True)
    for voice, speaker in enumerate(SPEAKERS):
        for digit in range(10):
            for take in range(takes):
                hertz, loudness = 300 * (digit + 1) + 5 * take, 4000 * (voice + 1)
                count = round(seconds * RATE)
                wave_form = [round(loudness * math.sin(math.tau * hertz * i / RATE)) for i in range(count)]
                write_wave(folder / f"{digit}_{speaker}_{take}.wav", wave_form)
    return folder


def write_wave(path: Path, samples: list[int], *, channels: int = 1) -> None:
    """Write 16-bit samples."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
