"""`stoker bench`: sends a defined load to one model of any server, and reports the results.

    options --levels--> a load for each concurrency or rate --loops--> samples --windows--> figures --> table, JSON, CSV

The request is built once and sent repeatedly: the figures contain the server and the transport, but not the encoding of requests.
"""
