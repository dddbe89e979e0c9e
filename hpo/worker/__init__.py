"""The worker: claims trials over HTTP and trains each in a process of its own.

    agent      registers, keeps leases alive, drains; one thread per slot claims and serves
    attempt    one attempt of one trial: its child, its reports, its log, its outcome
    outbox     what is said of an attempt, delivered in order while the API comes and goes
    children   starts child processes, through the server in `forkserver`
    child      the child's side: runs the user's objective, speaks with the attempt over `wire`

The supervising process never imports torch or user code; only children do.
"""
