"""`stoker plan`: predicts how a model will run on a device, before there is one."""
