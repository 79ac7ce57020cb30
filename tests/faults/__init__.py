"""Fault injection: every system call of a save is a point where the process is killed, the power
fails, or the disk reports an error.

filesystem    a model file system: operations -> what a crash leaves, for three loss models
strace_log    the log of strace -> system calls
recorder      system calls -> operations on the files of one folder: the crash points
server        a process that has torch imported and forks for every command
tracer        strace attached to a forked command; injected errors and kills
actions       the functions that forked commands run
scenarios     the operations that are tested: saves, training, conversions, cache files
comparison    how two folders differ, apart from what depends on time
harness       a scenario -> its crash points, and the problems at each of them

    python -m tests.faults                         number of crash points of every scenario
    python -m tests.faults NAME                    all problems of one scenario
    python -m tests.faults NAME --crash 12:data    one crash: what is left, and the problems
    python -m tests.faults NAME --error 12:EIO     one injected error
    python -m tests.faults NAME --kill 12          one real kill
"""
