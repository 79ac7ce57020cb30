"""The built-in task: dates as people write them, in many languages -> ISO dates (2026-03-07).

    languages   CLDR's names, forms and digits, through Babel    forms   which forms can be read
    write       a date in a form -> pieces                       noise   digits, case, slips
    pairs       a seed -> pairs, split by date                   files   pairs -> plain files

What is in it: Gregorian dates of 1900-2099 in CLDR's short, medium, long and full forms and those
with a weekday, local digits, Chinese numerals, upper and lower case, and one small slip in a name.
What is not: dates that can be read in two ways (3/4/2026; see forms), other calendars (a Thai year
2569, a Persian month), words CLDR's forms do not have ("the 7th of"), and slips in numbers.
"""
