"""`stoker bench`: load of a stated kind against one model of any server, and what came of it.

    options --levels--> a load for each concurrency or rate --loops--> samples --windows--> figures --> table, JSON, CSV

The request is built once and sent again and again: what is measured is the server and the way there, not the building of requests.
"""
