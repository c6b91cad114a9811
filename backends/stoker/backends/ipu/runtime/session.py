"""`Session`: an executable on a device, from load to save.

session = Session("executable.popef")
queues = session.create_queue_manager(num_buffers=4)
session.run_load_programs()        # once: weights
session.run_main_programs()        # in a loop, on a thread of its own
queues.output_queue("y").enqueue(y, callback=done)
queues.input_queue("x").enqueue(x)
...
session.stop()
session.run_save_programs()        # once
session.close()
"""

import enum
import weakref

from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager, reject_violation
from stoker.backends.ipu.runtime.engine import EngineParts, MainLoop
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, IpuRuntimeError, RecoverableRuntimeError
from stoker.backends.ipu.runtime.executable import Executable, Source
from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.loaded_program import LoadedProgram
from stoker.backends.ipu.runtime.queue_manager import QueueManager, TimeoutCallback
from stoker.backends.ipu.runtime.runtime_config import LaunchPolicy, SessionConfig
from stoker.backends.ipu.runtime.streams import (
    AnchorCallbackPolicy,
    AnchorPredicate,
    HandledInput,
    HandledOutput,
    Handler,
    TensorManager,
    bound,
    or_bind,
    pred_program_flow_main,
    pred_program_not_assigned,
)
from stoker.backends.simulated.pacing import Pacer


class SessionState(enum.Enum):
    """The states of a session."""

    CREATED = "created"
    LOADED = "loaded"
    RUNNING = "running"
    STOPPED = "stopped"
    SAVED = "saved"
    FAILED = "failed"
    CLOSED = "closed"


def bind_everything(_: Anchor) -> AnchorCallbackPolicy:
    """Every anchor that the file has tensor data for reads it from there."""
    return AnchorCallbackPolicy.BIND_USER_CB


class Session:
    """An executable on a device. Confined to one thread at a time, except `stop` and the queues.

    Attributes:
        executable: The executable that it runs.
        config: The configuration of the run.
    """

    def __init__(
        self,
        source: Executable | Source,
        config: SessionConfig | None = None,
        *,
        device: Device | None = None,
        device_manager: DeviceManager | None = None,
        tensor_data_predicate: AnchorPredicate = bind_everything,
    ) -> None:
        """Reads the executable and, unless the launch policy defers that, takes a device and loads it.

        Args:
            source: The executable, or its files.
            config: The configuration of the run.
            device: The device to run on; other sessions may share it. None: a free device that fits, which `close` releases.
            device_manager: The source of devices; by default that of this process's simulated system.
            tensor_data_predicate: Selects the anchors that read tensor data of the file, if there is any (`BIND_USER_CB`: yes). The user
                feeds all other anchors.

        Raises:
            PopefError: the source cannot be read, or was compiled by another version.
            DeviceUnavailable: no device is free.
            ApplicationRuntimeError: no device fits, `device` does not, or the program cannot be prepared.
        """
        self.config = config or SessionConfig()
        self.executable = Executable.of(source, check_package_hash=self.config.check_package_hash)
        manager = device_manager or (DeviceManager(device.system) if device else DeviceManager())
        self._manager = manager
        self._device = device
        self._gate = Gate(self.executable.name, manager.system.clock)
        self._pacer = Pacer(manager.system.clock, self.config.pacing)
        self._streams = TensorManager(self.executable, tensor_data_predicate)
        self._program = LoadedProgram(self.executable, self._streams, self._gate, self.config)
        self._loop = MainLoop(f"ipu-{self.executable.name}", self._gate)
        self._state = SessionState.CREATED
        # A session without references ends its thread and gives its device back, at the interpreter's exit at the latest.
        self._lease_state = _LeaseState(self._gate)
        self._finalizer = weakref.finalize(self, self._lease_state.end)
        if device is not None:
            reject_violation(self.executable.program, device)
        if self.config.policy is LaunchPolicy.IMMEDIATE:
            try:
                self._launch()
            except BaseException:
                self._finalizer()  # the traceback would hold the session, and so the device
                raise

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        if self._state is SessionState.CLOSED:
            return SessionState.CLOSED
        if self._gate.error is not None:
            return SessionState.FAILED
        if self._state is SessionState.RUNNING and not self._loop.is_running:
            return SessionState.STOPPED
        return self._state

    @property
    def error(self) -> IpuRuntimeError | None:
        """The error that ended the main programs; None if there was none."""
        return self._gate.error

    @property
    def device(self) -> Device:
        """The device of the session.

        Raises:
            ApplicationRuntimeError: the session has no device yet (deferred launch).
        """
        if self._device is None:
            raise ApplicationRuntimeError(
                f"the session of '{self.executable.name}' has no device before run_load_programs (deferred launch)"
            )
        return self._device

    def get_user_input_anchors(self) -> tuple[Anchor, ...]:
        """Returns the inputs that the user feeds: all but those bound to tensor data of the file."""
        return self._streams.user_inputs()

    def get_user_output_anchors(self) -> tuple[Anchor, ...]:
        """Returns all outputs; the user receives each of them."""
        return self.executable.metadata.outputs

    def set_user_input_handler(self, name: str, handler: Handler) -> None:
        """Lets `handler` fill the device's memory whenever input `name` is read; overrides tensor data of the file.

        Raises:
            ApplicationRuntimeError: there is no such input, the main programs run, or the session is closed.
        """
        self._reject_unless_idle("set_user_input_handler")
        self._streams.bind_input(HandledInput(self.executable.anchor(name, TensorType.INPUT), handler))

    def set_user_output_handler(self, name: str, handler: Handler) -> None:
        """Lets `handler` read the device's memory whenever output `name` is written.

        Raises:
            ApplicationRuntimeError: there is no such output, the main programs run, or the session is closed.
        """
        self._reject_unless_idle("set_user_output_handler")
        self._streams.bind_output(HandledOutput(self.executable.anchor(name, TensorType.OUTPUT), handler))

    def create_queue_manager(
        self,
        num_buffers: int,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
        in_pred: AnchorPredicate | None = None,
        out_pred: AnchorPredicate | None = None,
    ) -> QueueManager:
        """Makes queues and connects them; those of an earlier manager are disconnected.

        Args:
            num_buffers: Entries of each ring.
            timeout_cb: Called on a thread of the device with the queue that starved for `timeout_ns`: an input without data, or an output
                without memory. An idle device reports starvation once until data arrives; a device in a call reports it after every
                timeout.
            timeout_ns: Time without data before `timeout_cb` is called; 0: never.
            in_pred: Which inputs get queues; the others are fed zeros unless they are connected otherwise. By default those of main
                programs, and those of no program. One given explicitly overrides tensor data of the file.
            out_pred: Likewise for outputs.

        Raises:
            ApplicationRuntimeError: the main programs run, the session is closed, or a predicate does not return a policy.
            ValueError: a number is out of range.
        """
        self._reject_unless_idle("create_queue_manager")
        if timeout_ns < 0:
            raise ValueError(f"timeout_ns is {timeout_ns}; expected nanoseconds, or 0 for no timeout")
        metadata = self.executable.metadata
        main = or_bind(pred_program_flow_main(metadata), pred_program_not_assigned)
        inputs = bound(metadata.inputs if in_pred else self.get_user_input_anchors(), in_pred or main)
        outputs = bound(metadata.outputs, out_pred or main)
        queues = QueueManager(inputs, outputs, num_buffers, self._gate)
        for input_queue in queues.inputs.values():
            self._streams.bind_input(input_queue)
        for output_queue in queues.outputs.values():
            self._streams.bind_output(output_queue)
        for anchor in self._program.main_anchors():
            self._streams.bind_nothing(anchor)
        self._loop.connect(queues, timeout_cb, timeout_ns)
        return queues

    def run_load_programs(self) -> None:
        """Loads the executable, if it is not on the device yet, and copies the weights to the device. May be called only once.

        Raises:
            ApplicationRuntimeError: not the first time, or a weight has no data.
            IpuRuntimeError: the device failed.
        """
        self._expect("run_load_programs", SessionState.CREATED)
        self._streams.reject_unbound(self._program.load_anchors(), "load")
        self._launch()
        self._program.run_load_programs()
        self._state = SessionState.LOADED

    def run_main_programs(self, calls: int | None = None) -> None:
        """Starts the main programs on a new thread and returns. They run until `stop`, an error, or `calls` calls.

        Raises:
            ApplicationRuntimeError: the load programs have not run, the main programs run already, or an anchor is not connected.
        """
        self._expect("run_main_programs", SessionState.LOADED, SessionState.STOPPED)
        anchors = self._program.main_anchors()
        index = self.executable.index_anchor
        self._streams.reject_unbound([*anchors, index] if index else anchors, "main")
        self._state = SessionState.RUNNING
        parts = EngineParts(
            computations=self._program.computations,
            index_anchor=index,
            streams=self._streams,
            weights=self._program.weights,
            device=self.device,
            program=self._program,
            gate=self._gate,
            pacer=self._pacer,
            iterations=self.executable.program.batches_per_step,
            undelivered=self._loop.undelivered,
            timeout_ns=self._loop.timeout_ns,
            on_starved=self._loop.on_starved,
        )
        self._loop.start(parts, calls)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the main programs end without `stop`; False after `timeout_s`."""
        return self._loop.join(timeout_s)

    def stop(self) -> None:
        """Ends the loop of the main programs, even during a call, and waits for its thread. Queued entries stay queued. Computed results
        are delivered when the main programs run again.

        Any thread may call it. A call on a thread of the device (in a callback) does not wait.
        """
        self._gate.stop()
        if self._device is not None:
            self._device.nudge()
        self._loop.join()

    def run_save_programs(self) -> None:
        """Copies tensors from the device to the outputs of the save programs. May be called once, after the main programs.

        Raises:
            ApplicationRuntimeError: the load programs have not run, or the main programs run still.
            IpuRuntimeError: the device failed.
        """
        self._expect("run_save_programs", SessionState.LOADED, SessionState.STOPPED)
        self._streams.reject_unbound(self._program.save_anchors(), "save")
        self._gate.reopen()
        self.device.load(self._program, lambda: self._gate.is_stopping)
        self._program.run_save_programs()
        self._state = SessionState.SAVED

    def reset(self) -> None:
        """Makes session and device usable again after a `RecoverableRuntimeError`, by the reset that it names. The load programs must run
        next.

        Raises:
            ApplicationRuntimeError: the session did not fail, or a reset cannot repair the failure.
            IpuRuntimeError: the device does not come back.
        """
        self.stop()
        error = self._gate.error
        if not isinstance(error, RecoverableRuntimeError):
            raise ApplicationRuntimeError(
                f"the session of '{self.executable.name}' has no recoverable error to reset from (error: {error})"
            )
        self.device.reset(error.action)
        self._gate.reopen()
        self._program.is_loaded_once = False
        self._state = SessionState.CREATED

    def close(self) -> None:
        """Stops, fails queued entries, and releases the device if the session attached it. May be called again."""
        self.stop()
        if self._state is SessionState.CLOSED:
            return
        self._state = SessionState.CLOSED
        if self._loop.queues is not None:
            self._loop.queues.disconnect_all()
        if self._device is not None and self._lease_state.device is None and self._device.resident is self._program:
            self._device.unload_from_device()
        self._finalizer()

    def _launch(self) -> None:
        if self._device is None:
            self._device = self._lease_state.device = self._manager.get_device(self.executable.program, self.config.wait_config)
        self._device.load(self._program, lambda: self._gate.is_stopping)

    def _expect(self, what: str, *allowed: SessionState) -> None:
        state = self.state
        if state is SessionState.FAILED and self._gate.error is not None:
            raise self._gate.error.with_traceback(None)
        if state not in allowed:
            raise ApplicationRuntimeError(
                f"{what} of '{self.executable.name}' in state '{state.value}': the order is run_load_programs once, "
                "run_main_programs, stop, run_save_programs once"
            )

    def _reject_unless_idle(self, what: str) -> None:
        if self._state is SessionState.CLOSED:
            raise ApplicationRuntimeError(f"{what} of '{self.executable.name}' after its session was closed")
        if self._loop.is_running:
            raise ApplicationRuntimeError(f"{what} of '{self.executable.name}' while its main programs run: stop them first")


class _LeaseState:
    """Ends the remains of a session: its thread, by the gate, and the device if the session took it itself."""

    def __init__(self, gate: Gate) -> None:
        self.device: Device | None = None
        self._gate = gate

    def end(self) -> None:
        # No join: the garbage collector may run this on a thread that holds what the device's thread waits for.
        self._gate.stop()
        if self.device is not None:
            self.device.detach()
