"""The kinds of messages between the server and a worker process.

The server sends LOAD once, then RUN for each batch; the process responds with LOADED, or with DONE for each batch. Numbers are given by who
begins: the server numbers batches, the process numbers its calls to other models.
"""

from typing import Final

#: To the process: what to load, as JSON. Back: LOADED with what the server must know of the instance, or FAILED.
LOAD: Final = 1
LOADED: Final = 2
FAILED: Final = 3
#: To the process: a batch. Back: RESPONSE for each response of a decoupled model (`index`: the request's place in the batch), then DONE.
RUN: Final = 4
RESPONSE: Final = 5
DONE: Final = 6
#: To the process: the client has read `CREDIT_STEP` responses of the request at place `index` of batch `number`.
CREDIT: Final = 7
#: To the process: the request at place `index` of batch `number` is cancelled.
CANCEL: Final = 8
#: To the server: the model calls another one. Back: CALL_RESPONSE for each response, then CALL_END.
CALL: Final = 9
CALL_RESPONSE: Final = 10
CALL_END: Final = 11
#: To the server: the model has read `index` responses of call `number`, or, with CALL_CANCEL, wants no more.
CALL_CREDIT: Final = 12
CALL_CANCEL: Final = 13
#: Both ways: nothing but freed segments.
FREED: Final = 14
#: To the process: close the instance and end. Back: CLOSED.
CLOSE: Final = 15
CLOSED: Final = 16
#: To the process: release memory that large batches needed.
RELEASE: Final = 17
#: To the server: the model asks about another one, or loads or unloads it. Back: CALL_END, `index` 1: it is ready.
CONTROL: Final = 18
#: To the server: the metrics of the model, all of them.
FIGURES: Final = 19

#: Responses of one stream that may wait to be read, at the start: each CREDIT adds to them.
CREDITS: Final = 16
#: Responses after which the reader sends CREDIT.
CREDIT_STEP: Final = 8
