"""The PopEF container: its logical schema, reader, writer and dump."""
