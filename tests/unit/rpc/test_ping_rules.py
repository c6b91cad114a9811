"""gRPC's keepalive rules, without a connection."""

from stoker.server.rpc.http2.peer_monitor import PingRules
from stoker.server.rpc.settings import GrpcSettings

SETTINGS = GrpcSettings(min_ping_interval_s=10, max_ping_strikes=2, keepalive_time_s=100, keepalive_timeout_s=20)


def test_pings_at_the_allowed_rate_are_never_too_many():
    rules = PingRules(SETTINGS, 0.0)
    assert not any(rules.is_too_many(10.0 * n) for n in range(100))


def test_third_strike_exceeds_the_limit():
    rules = PingRules(SETTINGS, 0.0)
    assert [rules.is_too_many(n * 1.0) for n in range(4)] == [False, False, False, True]


def test_data_sent_between_pings_resets_the_strikes():
    rules = PingRules(SETTINGS, 0.0)
    for n in range(3):
        assert not rules.is_too_many(n * 1.0)
    rules.has_sent_data = True
    assert [rules.is_too_many(3 + n * 1.0) for n in range(4)] == [False, False, False, True]


def test_silent_peer_gets_one_ping_and_is_dead_without_an_acknowledgement():
    rules = PingRules(SETTINGS, 0.0)
    assert not rules.should_ping(99.0)
    assert rules.should_ping(100.0)
    assert not rules.should_ping(101.0)
    assert not rules.is_dead(119.0)
    assert rules.is_dead(120.0)


def test_any_received_byte_counts_as_an_acknowledgement():
    rules = PingRules(SETTINGS, 0.0)
    assert rules.should_ping(100.0)
    rules.heard_s = 100.5
    assert not rules.is_dead(130.0)
    assert not rules.should_ping(200.0)
    assert rules.should_ping(200.5)


def test_idle_connections_send_no_pings_if_pings_without_calls_are_not_permitted():
    rules = PingRules(GrpcSettings(keepalive_time_s=10, min_ping_interval_s=1, max_ping_strikes=0, permits_pings_without_calls=False), 0.0)
    assert not rules.should_ping(100.0, has_calls=False)
    assert rules.should_ping(100.0, has_calls=True)
    # With a call in work the usual interval holds, without one two hours.
    assert not rules.is_too_many(100.0, has_calls=True)
    assert not rules.is_too_many(105.0, has_calls=True)
    assert rules.is_too_many(110.0, has_calls=False)
