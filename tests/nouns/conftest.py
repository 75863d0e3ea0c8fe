"""The fixtures of the owners and of the database, for the nouns."""

from tests.control.conftest import make as make
from tests.control.conftest import world as world
from tests.database.conftest import database as database
from tests.database.conftest import url as url
