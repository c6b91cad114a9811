"""Running PopEF files on simulated IPUs: devices, sessions, queues, runners."""
