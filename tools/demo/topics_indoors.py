"""The topics of the demo corpus whose stories happen in houses and streets."""

from __future__ import annotations

from tools.demo.topics import Topic, make_topic

INDOORS: tuple[Topic, ...] = (
    make_topic(
        "kitchen",
        "the kitchen",
        "kitchen cook cooked soup cake oven bread spoon pot pan flour sugar recipe baked baker "
        "butter chef onion onions pancake pancakes stew",
        {
            "oven": "a hot box that bakes bread and cake",
            "recipe": "a list of steps for a cook",
            "soup": "a warm meal that you eat with a spoon",
            "chef": "the person who leads the kitchen",
        },
        places="in the kitchen | beside the oven | at the kitchen table | behind a pile of "
        "pancakes | over a pot of soup | next to the bread",
        things="wooden spoon | copper pot | recipe | cake tin | bag of flour | jar of sugar",
        roles="cook | baker | chef | soup taster",
        friends="jolly chef | old baker | hungry cook | pancake master | kitchen mouse | soup "
        "fairy",
        deeds="stirred the soup | baked a cake | cut the onions | fried pancakes in the pan | "
        "tasted the stew | kneaded the bread",
        wishes="bake the tallest cake | cook soup for everybody | learn the secret recipe | flip "
        "ten pancakes | win the bread prize",
        troubles="the cake burned in the oven | {p} {thing} fell into the soup | "
        "somebody mixed up salt and sugar | the pot boiled over",
        fixes="baked a new cake | added butter to the stew | cleaned the oven | "
        "found another recipe",
        views="The kitchen smelled of fresh bread. | The soup was hot and good. | The oven was "
        "still warm. | There was flour on every chair.",
    ),
    make_topic(
        "music",
        "music",
        "music piano violin drum drums song songs guitar concert orchestra trumpet melody flute "
        "choir sang singer musician tune",
        {
            "violin": "a wooden instrument with four strings that plays a melody",
            "orchestra": "a large group of people who play music together",
            "choir": "a group of people who sing a song together",
            "concert": "an evening when people listen to music",
        },
        places="at the concert | beside the piano | in the music hall | behind the drums | in "
        "front of the orchestra | next to the choir",
        things="violin | silver flute | drum | guitar | song book | old trumpet",
        roles="singer | musician | violin maker | piano player",
        friends="famous singer | choir leader | shy drum player | guitar maker | "
        "blind musician | trumpet player",
        deeds="played a melody on the piano | sang a song | beat the drums | tuned the guitar | "
        "listened to the orchestra | practised the violin",
        wishes="play in a concert | write a song | lead the orchestra | learn the violin | sing in "
        "the choir",
        troubles="a string of the violin broke | {p} {thing} was out of tune | the "
        "singer lost her voice before the concert | the piano was locked",
        fixes="lent {o} a guitar | sang the melody again | repaired the piano | asked "
        "the orchestra to wait",
        views="The last note of the song faded. | The orchestra bowed. | Soft music filled the "
        "room. | The drums were silent.",
    ),
    make_topic(
        "city",
        "the city",
        "city street streets bus taxi traffic skyscraper subway tower museum crowd bridge elevator "
        "lamps mayor sidewalk buses policeman",
        {
            "skyscraper": "a very tall building in the city",
            "subway": "a fast ride below the streets of the city",
            "mayor": "the person who leads the city",
            "museum": "a city house full of old pictures",
        },
        places="in the city | on a busy street | at the bus stop | in the museum | on top of a "
        "skyscraper | on the city bridge",
        things="bus ticket | street map | subway card | taxi sign | museum postcard | city "
        "newspaper",
        roles="taxi driver | mayor | bus driver | street painter",
        friends="taxi driver | friendly mayor | tall policeman | museum guard | street painter | "
        "bus driver",
        deeds="took the bus across the bridge | walked through the crowd | rode the elevator to "
        "the top of the tower | painted the street lamps | visited the museum | waited in the "
        "traffic",
        wishes="see the whole city from above | drive a taxi | meet the mayor | paint every street "
        "| ride the subway at night",
        troubles="the traffic stood still | {p} {thing} was left on the bus | the elevator got "
        "stuck in the tower | {s} got lost in the crowd",
        fixes="stopped the bus | drove {o} home in a taxi | opened the elevator | "
        "led {o} through the traffic",
        views="The street lamps came on. | The traffic hummed below. | The skyscraper touched the "
        "clouds. | The last bus went by.",
    ),
    make_topic(
        "hospital",
        "the hospital",
        "hospital doctor doctors nurse nurses medicine patient patients bandage fever ambulance "
        "surgeon clinic healed pills stethoscope sick",
        {
            "nurse": "a person who cares for the patients in a hospital",
            "ambulance": "a fast car that brings sick people to the hospital",
            "bandage": "a strip of cloth that a nurse puts on a cut",
            "surgeon": "a doctor who operates on patients",
        },
        places="in the hospital | at the clinic | beside a sick patient | in the ambulance | in "
        "the doctor's office | by the medicine shelf",
        things="bandage | bottle of medicine | stethoscope | doctor's bag | box of pills | "
        "hospital blanket",
        roles="doctor | nurse | surgeon | ambulance driver",
        friends="kind nurse | tired doctor | brave patient | ambulance driver | young surgeon | "
        "hospital cat",
        deeds="gave medicine to a patient | put on a bandage | listened with the stethoscope | "
        "drove the ambulance | measured the fever | talked to the nurses",
        wishes="become a doctor | heal every patient | ride in the ambulance | help the nurse | "
        "find a new medicine",
        troubles="{p} {thing} was missing from the clinic | the fever would not go down | the "
        "ambulance had a flat tyre | the only doctor was sick",
        fixes="brought the right medicine | called the surgeon | put a bandage on {p} "
        "arm | stayed with the patients all night",
        views="The patients were fast asleep. | The fever was gone. | The hospital was quiet at "
        "last. | The nurse turned off the light.",
    ),
    make_topic(
        "school",
        "school",
        "school teacher class classroom pupil pupils homework lesson lessons blackboard chalk "
        "pencil desk exam library spelling grammar schoolbag",
        {
            "blackboard": "a dark board on which a teacher writes with chalk",
            "homework": "the work that pupils do after school",
            "classroom": "a room where a teacher gives lessons",
            "exam": "a test at school",
        },
        places="in the classroom | at school | in front of the blackboard | behind {p} desk | in "
        "the school library | in the spelling lesson",
        things="pencil | piece of chalk | homework book | schoolbag | exam paper | grammar book",
        roles="teacher | pupil | school librarian | chalk artist",
        friends="strict teacher | new pupil | school janitor | class parrot | cheerful teacher | "
        "library ghost",
        deeds="wrote on the blackboard | finished the homework | read in the library | sharpened "
        "a pencil | raised {p} hand in class | passed the exam",
        wishes="pass the exam | become a teacher | win the spelling prize | read every book in the "
        "library | skip the lesson",
        troubles="{p} {thing} was not in the schoolbag | the teacher asked a hard question | the "
        "chalk broke in the middle of the lesson | the exam began too early",
        fixes="explained the lesson again | lent {o} a pencil | wrote the answer on the blackboard "
        "| opened the school library",
        views="The school bell rang. | The pupils packed their bags. | The classroom was empty. | "
        "There was chalk dust in the air.",
    ),
    make_topic(
        "castle",
        "the castle",
        "castle king knight knights dragon prince princess sword throne crown armour "
        "dungeon tournament drawbridge royal wizard",
        {
            "dragon": "a huge beast that guards a castle",
            "knight": "a fighter with a sword and armour",
            "throne": "the chair of a king",
            "drawbridge": "the wooden road into a castle",
        },
        places="in the castle | before the throne | on the drawbridge | in the dungeon | at the "
        "royal tournament | beside a sleeping dragon",
        things="golden crown | sword | dragon egg | knight's shield | royal ring | suit of armour",
        roles="knight | royal messenger | royal guard | dragon tamer",
        friends="old king | clumsy knight | lonely dragon | princess | court wizard | royal cat",
        deeds="polished the armour | fought in the tournament | bowed before the king | fed the "
        "dragon | guarded the throne | rode over the drawbridge",
        wishes="become a knight | tame a dragon | wear the crown | free the princess | win the "
        "tournament",
        troubles="a dragon stole {p} {thing} | the drawbridge would not open | the king locked {o} "
        "in the dungeon | the sword broke in two",
        fixes="spoke to the king | made peace with the dragon | opened the dungeon | "
        "forged a new sword",
        views="The king smiled on the throne. | The dragon flew over the castle. | The knights put "
        "down their swords. | The crown gleamed.",
    ),
    make_topic(
        "train",
        "the train",
        "train trains railway station locomotive conductor wagon wagons rails tunnel platform "
        "steam passengers passenger timetable carriage",
        {
            "locomotive": "the engine that pulls a train",
            "platform": "the place where you wait for a train",
            "conductor": "the person who checks the tickets of the passengers",
            "wagon": "a part of a train that carries loads",
        },
        places="on the train | at the railway station | on the platform | in the last wagon | "
        "beside the steam engine | in a dark railway tunnel",
        things="train lantern | railway lamp | conductor's cap | timetable | toy locomotive | "
        "lump of railway coal",
        roles="conductor | railway worker | locomotive driver | station master",
        friends="kind conductor | station master | locomotive driver | sleeping passenger | "
        "railway dog | ticket seller of the station",
        deeds="travelled in the first carriage | waved at the passengers | checked the timetable | "
        "looked down the long rails | shovelled coal into the locomotive | waited on the platform",
        wishes="drive the locomotive | travel to the last station | sleep in a train | hear the "
        "steam engine | become a conductor",
        troubles="the train left without {o} | a stone lay on the rails | {p} {thing} was still in "
        "the carriage | the engine lost all its steam",
        fixes="stopped the train | changed the timetable | pulled {o} up into the wagon | "
        "repaired the locomotive",
        views="The train rolled into the night. | Steam rose above the rails. | The station clock "
        "struck nine. | The passengers waved.",
    ),
)
