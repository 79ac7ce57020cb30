"""The built-in task of `weft demo`: dates as people write them, in 30 languages -> ISO dates.

dates   a seed -> pairs (written date, ISO date), from CLDR's names and formats
demo    data files, recipe and evaluation of the demo model
"""
