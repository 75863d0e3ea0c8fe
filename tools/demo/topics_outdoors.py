"""The topics of the demo corpus whose stories happen outdoors."""

from __future__ import annotations

from tools.demo.topics import Topic, make_topic

OUTDOORS: tuple[Topic, ...] = (
    make_topic(
        "sea",
        "the sea",
        "sea ocean beach wave waves shell shells sailor sailors boat boats harbour lighthouse fish "
        "fishes whale crab captain ship ships shore tide pearl anchor sail sailed dolphin coast "
        "seagull island sailing fisherman fishermen",
        {
            "lighthouse": "a tall house with a bright lamp that shows ships the way",
            "tide": "the slow rise and fall of the sea on the shore",
            "whale": "the largest animal of the sea",
            "harbour": "a safe place where boats can rest",
        },
        places="on the beach | by the harbour | on the shore | near the lighthouse | on a small "
        "island | at the edge of the ocean",
        things="shell | anchor | fishing boat flag | pearl | wooden boat | ship in a bottle",
        roles="sailor | captain | fisherman | lighthouse keeper",
        friends="old sailor | tiny crab | friendly dolphin | ship captain | blue whale | seagull",
        deeds="sailed a boat past the lighthouse | dived under the waves | counted the ships on "
        "the ocean | caught three silver fish | collected shells along the coast | watched the "
        "tide come in",
        wishes="sail across the ocean | find a pearl in the sea | swim with a dolphin | see the "
        "blue whale | steer a ship",
        troubles="a huge wave carried {p} {thing} away | the boat began to sink | the tide came in "
        "too fast | the ship lost its way on the dark sea",
        fixes="threw {o} a rope from the ship | showed {o} the way to the harbour | pulled {o} "
        "back to the shore | rowed the boat through the waves",
        views="The waves shone in the evening light. | The sea was as smooth as glass. | A seagull "
        "cried above the shore. | Far out a ship blew its horn.",
    ),
    make_topic(
        "forest",
        "the forest",
        "forest tree trees oak owl squirrel mushroom mushrooms moss fern acorn acorns pine woods "
        "deer leaves hedgehog fox branch branches badger twigs",
        {
            "forest": "a large place full of trees",
            "owl": "a bird that hunts among the trees at night",
            "acorn": "the nut of an oak tree",
            "moss": "a soft green plant that covers stones in the forest",
        },
        places="in the forest | under an old oak | deep in the woods | between the pine trees | "
        "on a path of moss | among the ferns of the forest",
        things="acorn | mushroom | pine cone | carved branch | basket of twigs | owl feather",
        roles="forest ranger | woodcutter of the forest | mushroom hunter | tree climber",
        friends="wise owl | red squirrel | shy deer | sleepy badger | clever fox | hedgehog",
        deeds="climbed the tallest tree | gathered mushrooms in the moss | followed a deer between "
        "the trees | built a hut of branches | hid acorns under the leaves | listened to the owl",
        wishes="find the oldest oak | talk to an owl | build a house in a tree | see a white deer "
        "| learn the name of each mushroom",
        troubles="{p} {thing} fell into a hollow tree | the path vanished under the leaves | "
        "thick branches blocked the way | {p} foot got stuck under an oak root",
        fixes="bent the branches aside | led {o} out of the woods | dug under the oak | "
        "called {o} from the top of a tree",
        views="The leaves rustled softly. | An owl called from the oak. | The forest smelled of "
        "moss. | A squirrel jumped from branch to branch.",
    ),
    make_topic(
        "space",
        "space",
        "space rocket planet planets star stars moon comet astronaut astronauts galaxy alien mars "
        "orbit spaceship telescope meteor crater saturn",
        {
            "comet": "a ball of dust with a bright tail that flies among the stars",
            "rocket": "a machine that flies into space",
            "planet": "a large round world that moves in an orbit",
            "astronaut": "a person who travels in space",
        },
        places="on the moon | in a spaceship | far away in space | on the red planet | in orbit "
        "around Saturn | beside a silver rocket",
        things="telescope | moon stone | star map | rocket engine | space helmet | piece of a "
        "comet",
        roles="astronaut | rocket pilot | star explorer | planet hunter",
        friends="green alien | space robot | old astronaut | tiny alien | rocket engineer | moon "
        "cat",
        deeds="flew a rocket past Mars | landed in a deep crater | counted the stars | floated "
        "around the spaceship | chased a comet | looked at a galaxy through the telescope",
        wishes="walk on the moon | find a new planet | catch a comet | meet an alien | fly to "
        "another galaxy",
        troubles="a meteor hit the spaceship | {p} {thing} floated off into space | the rocket ran "
        "out of fuel | the moon dust covered all the buttons",
        fixes="repaired the rocket | pulled {o} back into the spaceship | called for help from "
        "the next planet | steered the spaceship out of orbit",
        views="The stars were very bright. | A comet crossed the black sky. | The moon was full "
        "and white. | The planet turned slowly below.",
    ),
    make_topic(
        "football",
        "football",
        "football goal goals goalkeeper referee team match stadium striker coach whistle penalty "
        "kicked scored pitch league defender trophy",
        {
            "goalkeeper": "the football player who guards the goal",
            "penalty": "a free shot at the goal",
            "referee": "the person with the whistle who watches over the match",
            "stadium": "a huge place where people watch a football match",
        },
        places="in the stadium | on the football pitch | in front of the goal | beside the pitch | "
        "in the team room | behind the goal",
        things="football | golden trophy | whistle | team scarf | football shirt | pair of "
        "goalkeeper gloves",
        roles="striker | goalkeeper | football coach | referee",
        friends="strict referee | tall goalkeeper | player of the league | old coach | fast "
        "striker | defender",
        deeds="kicked the ball past the goalkeeper | scored two goals | trained with the team | "
        "ran up and down the pitch | saved a penalty | cheered for the team",
        wishes="win the match | score the first goal | play in the big stadium | lift the trophy | "
        "save a penalty",
        troubles="the other team scored three times | the referee lost the {thing} | the match was "
        "almost over | the striker kicked the ball over the stadium",
        fixes="passed {o} the ball near the goal | blew the whistle | showed {o} a trick from the "
        "league | asked the coach for one more chance",
        views="The whole stadium cheered. | The referee blew the whistle. | The ball rolled over "
        "the pitch. | The score of the match was three to two.",
    ),
    make_topic(
        "winter",
        "winter",
        "winter snow ice snowman snowball sled skates frost frozen icicle icicles snowflake "
        "snowflakes mittens blizzard penguin froze skated",
        {
            "snowman": "a figure made of three large balls of snow",
            "icicle": "a long spike of ice that hangs from a roof",
            "blizzard": "a strong wind full of snow",
            "sled": "a wooden seat that slides over the snow",
        },
        places="in the deep snow | on the frozen pond | on a hill of snow | beside a snowman | in "
        "the cold winter air | under the icicles",
        things="sled | pair of skates | snowball | pair of mittens | icicle | snow lantern",
        roles="sled driver | ice skater | snow shoveller | winter explorer",
        friends="round snowman | little penguin | sled dog | snow queen | white bear of the ice | "
        "ice skater",
        deeds="slid down the hill on a sled | built a snowman | skated over the ice | caught "
        "snowflakes with {p} tongue | threw a snowball | put on warm mittens",
        wishes="build the biggest snowman | skate across the frozen pond | see the first snow | "
        "ride a sled all day | meet a penguin",
        troubles="the ice began to crack | a blizzard hid the path | {p} {thing} froze to the "
        "ground | the snow buried the door",
        fixes="pulled {o} off the ice | melted the frost with hot tea | dug a way through the snow "
        "| brought dry mittens",
        views="Snowflakes fell without a sound. | The icicles sparkled. | Everything was white "
        "with snow. | The frost painted flowers on the glass.",
    ),
    make_topic(
        "desert",
        "the desert",
        "desert sand camel camels oasis dune dunes cactus scorpion lizard caravan nomad tent palm "
        "pyramid mirage",
        {
            "camel": "an animal that carries people over the sand",
            "oasis": "a place with water in the desert",
            "dune": "a hill of sand",
            "cactus": "a plant with spikes that lives in the desert",
        },
        places="in the desert | on a high dune | at the oasis | beside a pyramid | in a tent on "
        "the sand | under a palm",
        things="camel saddle | jar of sand | tent rope | cactus flower | caravan bell | palm "
        "basket",
        roles="nomad | camel rider | caravan guide | desert trader",
        friends="grumbling camel | green lizard | old nomad | polite scorpion | caravan guide | "
        "desert mouse",
        deeds="rode a camel over the dunes | rested under a palm | followed the caravan | drew "
        "signs in the sand | drank at the oasis | slept in a tent",
        wishes="reach the oasis | see the great pyramid | ride a white camel | cross the desert | "
        "find a town under the sand",
        troubles="a sand storm hid the dunes | the camel ran away with the {thing} | the oasis was "
        "only a mirage | a cactus tore the tent",
        fixes="found the camel | led {o} to the oasis | dug for water in the sand | shared the "
        "shade of the tent",
        views="The sand was still warm. | The dunes glowed red. | A camel snored beside the tent. "
        "| Far away a caravan bell rang.",
    ),
    make_topic(
        "farm",
        "the farm",
        "farm farmer cow cows pig pigs hen hens barn tractor hay sheep goat goats milk milked "
        "wheat rooster plough",
        {
            "barn": "a big house for hay and cows",
            "tractor": "a strong machine that pulls the plough",
            "rooster": "a bird that wakes the farm in the morning",
            "farmer": "a person who grows wheat and keeps cows",
        },
        places="on the farm | in the barn | beside the pigs | in the hay | in a field of wheat | "
        "behind the tractor",
        things="bucket of milk | hay fork | tractor key | bag of wheat | cow bell | rooster "
        "feather",
        roles="farmer | goat keeper | tractor driver | milk seller",
        friends="stubborn goat | brown cow | proud rooster | fat pig | kind farmer | woolly sheep",
        deeds="milked the cows | drove the tractor | fed the hens | carried hay to the barn | "
        "chased a pig | cut the wheat",
        wishes="drive the tractor | teach a pig to dance | raise a goat | own a barn | win the "
        "prize for the best cow",
        troubles="the pigs escaped from the barn | a goat ate {p} {thing} | the tractor "
        "stopped in the mud | the hens would not come home",
        fixes="opened the barn | pushed the tractor | called the cows one by one | "
        "mended the fence around the sheep",
        views="The cows were asleep. | The rooster crowed twice. | The barn smelled of hay. | The "
        "wheat moved in the wind.",
    ),
)
