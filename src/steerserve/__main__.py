"""python -m steerserve"""

from steerserve.cli import main

if __name__ == "__main__":
    main()
