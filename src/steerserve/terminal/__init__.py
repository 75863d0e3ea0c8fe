"""The commands of the terminal that ask a service, and the chat in the terminal.

`commands.py` has the commands, `chat.py` the chat, `naming.py` finds what a person means by a name, `starting.py`
starts and stops a service on this machine, and `output.py` has the forms in which answers are printed.
"""
