"""Tuning many programs. In reading order:

sources        programs out of files, folders and the database, each once
predicted_work what tuning a program takes, by its trace alone
shards         the programs that one machine of several tunes
possible_gain  what tuning a program may gain, before anything of it is compiled
agenda         the programs in their order
budget         the time of a whole run, and what each program gets of it
devices        where it works, and the workers there
crew           one thread a device, which takes one program after another
region_locks   regions that one device measures for all of its kind
promises       programs that no plan could be used for
"""
