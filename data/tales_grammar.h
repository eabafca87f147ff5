/* tales_grammar.h - The grammar of the tales, as two tables: words and rules.

   A rule is a choice among bodies, each with a weight. A body is literal text, except
     <rule>        the expansion of a rule; <rule x> passes it the variable x, which its bodies call *
     [=class]      a word of the class
     [x=class]     a word of the class, assigned to variable x until the end of the tale
     [x]           the word in variable x
     [x+y], [20-x-y], [x*y]   arithmetic on variables, from left to right
   A dot is followed by the form of a word: .a with its article; for a person .he .He .him .his .

   Choices are made without replacement within a tale, until all alternatives are used. A class has more words than a
   tale can draw, so two variables of one class never hold the same word.

   The grammar is unambiguous because no word of a class is a prefix of another, and two bodies of a rule differ before
   one of them ends. test/text/test_tales.c verifies that a tale has one derivation. */
#pragma once

enum { MAX_WORDS = 64, MAX_BODIES = 12 };

typedef struct { const char *name, *word[MAX_WORDS]; } WordClass;      /* unused entries are NULL */
typedef struct { int weight; const char *body; } Body;
typedef struct { const char *name; Body body[MAX_BODIES]; } Rule;      /* unused entries have weight 0 */

static const WordClass word_classes[] = {
    { "person", { "Mara/she", "Nell/she", "Ida/she", "Rosa/she", "Tilda/she", "Wanda/she", "Clara/she", "Greta/she",
        "Hazel/she", "Judith/she", "Lena/she", "Olive/she", "Vera/she", "Emma/she", "Otto/he", "Ben/he", "Tom/he",
        "Finn/he", "Hugo/he", "Karl/he", "Leo/he", "Max/he", "Oskar/he", "Paul/he", "Ruben/he", "Simon/he",
        "Walter/he", "David/he" } },
    { "town", { "Ashford", "Brill", "Coldwater", "Dunmore", "Elmstead", "Fairhaven", "Greenhill", "Harrow", "Ivyton",
        "Kingsbridge", "Larkfield", "Millbrook", "Norwick", "Oakley", "Redwater", "Stonebury", "Thornby",
        "Westerly" } },
    { "job", { "baker", "barber", "beekeeper", "carpenter", "clockmaker", "cobbler", "doctor", "farmer", "fiddler",
        "gardener", "hunter", "innkeeper", "judge", "mayor", "miller", "painter", "potter", "ropemaker", "sailor",
        "shepherd", "soldier", "tailor", "teacher", "weaver", "woodcutter", "glazier", "jeweller", "knight", "lawyer",
        "nurse", "plumber", "printer", "saddler", "tinker" } },
    { "nature", { "kind", "clever", "young", "brave", "quiet", "shy", "busy", "patient", "cheerful", "gentle",
        "careful", "merry", "friendly", "polite", "lively", "curious", "stubborn", "thoughtful", "calm", "generous",
        "modest", "wise", "jolly", "dreamy", "noble", "sensible", "serious", "graceful", "humble", "loyal", "daring",
        "eager" } },
    { "thing", { "lamp", "lantern", "kettle", "key", "kite", "basket", "bell", "blanket", "book", "bowl", "broom",
        "bucket", "hammer", "harp", "hat", "ladder", "drum", "violin", "umbrella", "mirror", "map", "mask", "mug",
        "compass", "candle", "chair", "clock", "cloak", "comb", "cup", "teapot", "telescope", "trumpet", "rope",
        "ribbon", "ring", "spade", "scarf", "sled", "spoon", "stool", "axe", "apron", "flute", "fan", "globe", "jug",
        "jacket", "needle", "net", "pillow", "pan", "quilt", "saddle", "saw", "vase", "whistle", "wheelbarrow" } },
    { "look", { "red", "blue", "green", "yellow", "white", "black", "grey", "brown", "purple", "orange", "old", "new",
        "small", "big", "heavy", "light", "pretty", "ugly", "plain", "fine", "strange", "dusty", "shiny", "precious",
        "striped", "tiny", "lovely", "huge", "golden", "silver", "round", "square", "long", "short", "wet", "clean",
        "dirty", "soft", "warm", "cold", "thick", "flat", "faded", "crooked", "nice", "rare", "wonderful", "curious",
        "empty" } },
    { "colour", { "red", "blue", "green", "yellow", "white", "black", "grey", "brown", "purple", "orange", "pink" } },
    { "weather", { "sunny", "rainy", "windy", "foggy", "snowy", "stormy", "cold", "warm", "hot", "mild", "bright",
        "misty", "frosty", "cloudy", "chilly", "icy" } },
    { "daytime", { "morning", "market day", "afternoon", "evening", "day" } },
    { "weekday", { "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday" } },
    { "feast", { "harvest", "spring", "lantern", "midsummer", "winter", "apple" } },
    { "animal", { "dog", "donkey", "duck", "cat", "cow", "crow", "goat", "goose", "horse", "hen", "hedgehog",
        "rabbit", "robin", "fox", "owl", "otter", "sheep", "squirrel", "pig", "pony", "parrot", "turtle", "badger",
        "bear", "beaver", "calf", "chicken", "frog", "lamb", "lizard", "mole", "newt", "magpie", "raven", "snail",
        "stork", "swan", "toad", "weasel", "wolf" } },
    { "coat", { "black", "white", "brown", "grey", "small", "thin", "fat", "young", "old", "spotted", "striped",
        "muddy", "hungry", "lonely", "friendly", "lame", "shaggy", "clever", "noisy", "tame", "wild", "quick", "slow",
        "blind", "sleepy", "proud", "lazy", "nervous", "happy", "angry" } },
    { "petname", { "Biscuit", "Button", "Pepper", "Pickle", "Shadow", "Ginger", "Clover", "Thimble", "Muffin",
        "Whisper", "Marble", "Nutmeg", "Acorn", "Bramble", "Domino", "Velvet" } },
    { "food", { "apples", "pears", "plums", "nuts", "eggs", "cherries", "chestnuts", "carrots", "cakes", "buns",
        "figs", "peaches", "walnuts", "pancakes", "tomatoes", "pies", "dates", "radishes", "muffins", "berries",
        "tarts", "melons", "oranges", "biscuits", "grapes", "lemons", "beans", "waffles", "olives", "raisins",
        "sausages", "rolls" } },
    { "meal", { "a bowl of soup", "a pot of tea", "a piece of pie", "a plate of dumplings", "a jar of honey",
        "a big pancake", "a cup of cocoa", "some warm bread", "some cheese", "some roasted chestnuts",
        "some fresh milk", "some salted fish", "some cold ham", "hot porridge", "boiled potatoes", "apple cake",
        "an onion tart", "a dish of beans" } },
    { "deed", { "swept the kitchen", "fed the hens", "picked flowers", "baked bread", "read a letter", "sang a song",
        "chopped wood", "wrote a poem", "watched the boats", "climbed a hill", "cooked soup", "milked the cow",
        "planted beans", "danced in the yard", "threw stones", "listened to the birds", "looked for mushrooms",
        "counted the clouds", "dug up potatoes", "caught a fish", "played chess", "made candles", "fetched water",
        "gathered firewood", "rode a pony", "told a joke", "brushed the horse", "sharpened knives",
        "collected shells", "watered the roses", "sewed a shirt", "lit a fire", "took a walk" } },
    { "mood", { "glad", "happy", "proud", "cheerful", "content", "merry", "pleased", "grateful", "sleepy", "tired",
        "hopeful", "relieved", "delighted", "amused", "calm", "joyful", "thankful", "hungry", "thirsty", "excited",
        "lucky", "surprised", "dizzy", "rich", "famous", "busy" } },
    { "manner", { "softly", "kindly", "loudly", "quickly", "politely", "gently", "warmly", "cheerfully", "slowly",
        "calmly", "shyly", "gravely", "brightly", "eagerly", "happily", "proudly", "sleepily", "with a laugh",
        "with a nod", "in a low voice" } },
    { "near", { "close to", "behind", "beside", "by", "near", "next to", "opposite", "in front of", "left of",
        "not far from" } },
    { "spot", { "bridge", "mill", "well", "barn", "gate", "oak", "inn", "school", "fountain", "bakery", "tower",
        "stable", "church", "wall", "haystack", "willow", "chapel", "windmill", "pier", "boathouse", "town hall",
        "hedge", "rock", "shed", "cottage", "lighthouse", "forge", "dovecote", "woodpile", "garden", "lake",
        "castle" } },
    { "state", { "old", "big", "little", "white", "grey", "mossy", "crooked", "quiet", "empty", "tall", "round",
        "dark", "sunny", "shady", "narrow", "lonely", "pretty", "famous", "haunted", "dusty", "broad", "ancient",
        "hidden", "misty", "windy", "distant" } },
    { "verb", { "painted", "mended", "cleaned", "found", "drew", "hid", "polished", "moved", "dropped", "measured",
        "washed", "wrapped", "weighed", "dusted", "admired", "dried", "tested", "touched", "turned", "kicked",
        "sketched", "lifted", "oiled", "inspected", "scrubbed", "borrowed", "rolled", "pushed", "pulled", "buried",
        "copied", "varnished", "opened", "shook", "emptied", "guarded", "unpacked", "stacked", "labelled", "wanted",
        "noticed", "forgot" } },
    { "object", { "table", "bench", "gate", "wheel", "boat", "boot", "shelf", "churn", "desk", "plate", "rug", "shoe",
        "glove", "coat", "shirt", "vest", "rake", "pump", "bed", "cradle", "stove", "dish", "fork", "knife", "statue",
        "wreath", "tent", "sign", "puppet", "doll", "toy", "medal", "oar", "anchor", "pipe", "coin", "feather",
        "pebble", "cage", "chain", "crown", "hook", "horn", "marble", "mop", "nail", "quill", "sofa", "wand", "wig",
        "lid", "rod", "sponge", "zither", "mat", "ladle", "hinge", "lock", "mantle", "stamp", "thimble", "pencil",
        "magnet", "bonnet" } },
    { "dish", { "soup", "bread", "cheese", "porridge", "dumplings", "rice", "pudding", "honey", "milk", "ham", "fish",
        "tea", "noodles", "cream", "salad", "stew" } },
    { "note", { "bim", "bam", "bom", "dum", "dee", "doo", "ding", "dong", "fa", "fol", "fee", "hey", "hi", "ho", "la",
        "lo", "lu", "pom", "pim", "ra", "rum", "ri", "ta", "ti", "tra", "tum", "zum", "zip", "nana", "nin", "ya",
        "yo", "kling", "klang" } },
    { "surname", { "Underhill", "Appleby", "Barlow", "Bishop", "Carter", "Clay", "Dale", "Dixon", "Fletcher",
        "Foster", "Garland", "Gray", "Hale", "Hobbs", "Jarvis", "Keller", "Kemp", "Lowell", "Lynch", "Marsh",
        "Mercer", "Nash", "North", "Osborn", "Parker", "Pike", "Quinn", "Rowe", "Rush", "Shaw", "Spencer", "Stone",
        "Tanner", "Thorpe", "Vance", "Walsh", "Wells", "Winter", "York" } },
    { "vessel", { "bag", "barrel", "basin", "bin", "bottle", "box", "can", "cart", "cask", "chest", "crate",
        "cupboard", "drawer", "hamper", "jar", "pail", "pot", "sack", "tin", "tray", "trunk", "tub", "urn" } },
    { "digit", { "2", "3", "4", "5", "6", "7", "8", "9" } },
    { "teen", { "11", "12", "13", "14", "15", "16", "17", "18", "19" } },
};

static const Rule rules[] = {
    { "tale", {
        { 1, "<opening> <time>, <plot>\n<ending>\n\n" } } },
    { "opening", {
        { 3, "In [home=town] lived [=nature.a] and [=nature] [job=job] whose name was [hero=person] [kin=surname]." },
        { 2, "Once [=nature.a] [job=job] of [=digit][=digit] called [hero=person] [kin=surname] "
             "lived in [home=town]." },
        { 2, "Everybody in [home=town] knew [hero=person] [kin=surname], the [=nature] [job=job]." },
        { 2, "This is the tale of [hero=person] [kin=surname], [=nature.a] and [=nature] [job=job] from [home=town]." },
        { 3, "[hero=person] [kin=surname] was [=nature.a] [job=job] who lived in [home=town]." },
        { 2, "At number [=digit][=digit] in [home=town] lived [hero=person] [kin=surname], "
             "[=nature.a] and [=nature] [job=job]." },
        { 1, "The [job=job] of [home=town] was called [hero=person] [kin=surname], and seemed very [=nature]." } } },
    { "time", {
        { 3, "One [=weather] [=daytime]" },
        { 3, "One [=weather] [=weekday]" },
        { 2, "On [=weather.a] [=daytime]" },
        { 1, "On the day of the [=feast] feast" },
        { 1, "Late one [=weather] [=weekday]" },
        { 1, "After [=weather.a] night" } } },
    { "plot", {
        { 3, "[friend=person] the [=nature] [=job] <came>. <ask> <grant>\n"
             "<busy friend> <busy hero> <returned> <thanks>" },
        { 2, "[hero.he] had [n=digit] [food=food] in [tint=colour.a] basket. <given>\n<busy hero> <counting> <more>" },
        { 2, "[hero.he] counted [t=teen] [food=food] <spot>. <eaten>\n<busy friend> <busy hero> <left>" },
        { 2, "[hero.he] filled [n=digit] [tint=colour] baskets with [m=digit] [food=food] each. <times>\n"
             "<busy hero> <sold>" },
        { 3, "[hero.he] took [hero.his] [look=look] [thing=thing] along and left it <where>. <busy hero>\n"
             "<missing> <helper> <busy friend> <told> <found>" },
        { 3, "[coat=coat.a] [pet=animal] followed [hero.him] home. <naming>\n<busy hero> <visit> <called> <played>" },
        { 3, "[hero.he] [did=deed] and set out for [goal=town] with [look=look.a] [thing=thing]. "
             "<road>\nAt the gate of [goal] stood [friend=person] the [=nature] [=job]. "
             "<question> <question> <welcome>" },
        { 3, "[hero.he] heard [friend=person] the [=nature] [=job] sing \"[a=note] [b=note] [c=note] [d=note]\" "
             "<spot>. <sung>\n<busy friend> <busy hero> <taught>" },
        { 3, "[hero.he] carried [thing=thing.a] to the market. <swap>\n<resold> <busy hero> <busy third> <recap>" },
        { 3, "[hero.he] went shopping with 20 coins. <bought> <paid>\n<busy hero> <met> <price> <price>" } } },

    /* An object is lent until a day, and returned on it. */
    { "came", {
        { 2, "knocked at [hero]'s door" },
        { 2, "came running up the street" },
        { 2, "met [hero] <spot>" },
        { 1, "stood at the gate with a worried face" },
        { 1, "looked in at the window" } } },
    { "ask", {
        { 3, "\"Please lend me your [look=look] [thing=thing],\" <said friend>" },
        { 2, "\"May I borrow your [look=look] [thing=thing]?\" <asked friend>" },
        { 2, "[friend.He] needed [thing=thing.a], and [hero] had [look=look.a] one." },
        { 1, "\"My [thing=thing] is gone. May I take your [look=look] one?\" <asked friend>" } } },
    { "grant", {
        { 2, "\"Take it,\" <said hero> \"But I need it back on [back=weekday].\"" },
        { 2, "[hero] nodded. \"You may keep it until [back=weekday],\" [hero.he] said." },
        { 2, "\"With pleasure, if it is back by [back=weekday],\" <said hero>" },
        { 1, "They shook hands on it: on [back=weekday] the [thing] would come home." } } },
    { "returned", {
        { 2, "On [back], [friend] brought the [look] [thing] back." },
        { 1, "When [back] came, the [look] [thing] was back in [hero]'s house." },
        { 1, "[friend] did not forget: on [back] [hero] had the [look] [thing] again." },
        { 1, "Then it was [back], and [friend] came with the [look] [thing]." } } },
    { "thanks", {
        { 2, "\"Thank you, [hero],\" said [friend], and gave [hero.him] <meal>." },
        { 1, "\"What do I owe you?\" <asked friend> \"Nothing at all,\" <said hero>" },
        { 1, "\"The [thing] is as good as new,\" <said hero>" },
        { 1, "\"Here is your [thing], [hero],\" <said friend> \"I have even cleaned it.\"" } } },

    /* Sums, differences, products. */
    { "given", {
        { 2, "[friend=person] came along and gave [hero.him] [m=digit] more, so now [hero.he] had [n+m] [food]." },
        { 2, "Along came [friend=person] with [m=digit] [food]. Together they had [n+m] [food]." },
        { 2, "[friend=person] the [=nature] [=job] added [m=digit] more, and that made [n+m] [food]." } } },
    { "counting", {
        { 2, "\"How many [food] are there?\" asked [third=person]. \"There are [n+m],\" <said hero>" },
        { 2, "\"What is in the [tint] basket?\" asked [third=person] the [=nature] [=job]. "
             "\"[n+m] [food],\" <said hero>" },
        { 1, "\"Are there [n+m+1] [food]?\" asked [third=person]. \"One less,\" <said hero> \"There are [n+m].\"" } } },
    { "more", {
        { 2, "\"Take [k=digit] of mine,\" <said third> Now there were [n+m+k] [food]." },
        { 2, "[third] added [k=digit], and [n+m] and [k] make [n+m+k]." },
        { 1, "The [=animal] of the [=job] stole one of them, and [n+m-1] were left." },
        { 1, "In the end [hero] ate [n] [food] and [friend] ate [m], and the [tint] basket was empty." } } },
    { "eaten", {
        { 2, "[friend=person] was hungry and ate [m=digit] of them." },
        { 2, "Along came [friend=person] the [=nature] [=job], who took [m=digit] of them home." },
        { 2, "\"May I have [m=digit] of them?\" asked [friend=person]. \"Help yourself,\" <said hero>" } } },
    { "left", {
        { 2, "\"How many [food] are left?\" asked [third=person]. \"[t] less [m] is [t-m],\" <said hero>" },
        { 1, "When [third=person] the [=nature] [=job] counted the [food] again, there were [t-m]." },
        { 1, "\"Here are [t-m] [food],\" said [third=person]. \"Were there not [t]?\" "
             "\"[friend] has the other [m],\" <said hero>" } } },
    { "times", {
        { 2, "\"How many [food] do you have?\" asked [friend=person]. \"[n] times [m] is [n*m],\" <said hero>" },
        { 2, "[friend=person] helped [hero.him], and soon there were [n*m] [food]." },
        { 1, "\"That makes [n*m] [food],\" said [friend=person] the [=nature] [=job]." } } },
    { "sold", {
        { 2, "\"I will buy all [n*m] [food] for [k=digit] coins,\" <said friend>" },
        { 2, "[third=person] bought one of the [tint] baskets, and there were [n*m-m] [food] left." },
        { 1, "[third=person] put [k=digit] more [food] on top, which made [n*m+k]." } } },

    /* An object is lost, and found where it was left. */
    { "missing", {
        { 1, "In the evening the [thing] was missing." },
        { 1, "When [hero] came home, [hero.he] could not find the [thing]." },
        { 1, "\"Where is my [look] [thing]?\" <asked hero>" },
        { 1, "Then [hero] looked everywhere for the [look] [thing], but in vain." } } },
    { "helper", {
        { 1, "[hero.He] asked [friend=person] the [=nature] [=job] for help." },
        { 1, "[friend=person] the [=nature] [=job] wanted to help." },
        { 1, "Luckily, [hero.he] met [friend=person] the [=nature] [=job]." },
        { 1, "Soon [friend=person] heard of it." } } },
    { "told", {
        { 1, "\"Think! You left it [near] the [state] [spot],\" <said friend>" },
        { 1, "\"I saw your [thing] [near] the [state] [spot],\" <said friend>" },
        { 1, "\"Did you not leave it [near] the [state] [spot]?\" <asked friend>" } } },
    { "found", {
        { 1, "And there it was, [near] the [state] [spot], just as [hero] had left it." },
        { 1, "They ran to look, and [near] the [state] [spot] lay the [look] [thing]." },
        { 1, "So they went there together, and [hero] had [hero.his] [look] [thing] again." },
        { 1, "When they came there, [=coat.a] [=animal] was sitting on the [thing]." } } },

    /* An animal gets a name, which is used later. */
    { "naming", {
        { 2, "[hero.He] called it [call=petname]." },
        { 2, "\"I will call you [call=petname],\" <said hero>" },
        { 1, "It answered to the name of [call=petname]." },
        { 1, "Around its neck hung a note with one word: [call=petname]." } } },
    { "visit", {
        { 1, "Soon [friend=person] the [=nature] [=job] came to visit." },
        { 1, "[friend=person] the [=nature] [=job] saw the [pet] and liked it." },
        { 1, "At noon [friend=person] the [=nature] [=job] looked over the fence." } } },
    { "called", {
        { 1, "\"What is the name of your [pet]?\" <asked friend> \"[call],\" <said hero>" },
        { 1, "\"Who is this?\" <asked friend> \"This is [call], my [coat] [pet],\" <said hero>" },
        { 1, "\"Is it called [other=petname]?\" <asked friend> \"No, [call],\" <said hero>" } } },
    { "played", {
        { 1, "Then the [pet] ran off, and they shouted \"[call]! [call]!\" until it came back." },
        { 1, "The [coat] [pet] ate <meal> and fell asleep <spot>." },
        { 1, "\"[call] likes you,\" <said hero> \"And I like [call],\" <said friend>" },
        { 1, "[friend] gave [call] <meal>, and the [coat] [pet] was [=mood]." } } },

    /* A traveller answers questions about earlier sentences. */
    { "road", {
        { 1, "On the road [hero.he] met [=coat.a] [=animal]." },
        { 1, "It was a long way, and [hero.he] had <meal> <spot>." },
        { 1, "The road was long, and [hero] was soon [=mood]." },
        { 1, "For a while [=coat.a] [=animal] walked with [hero.him]." } } },
    { "question", {
        { 1, "\"Where do you come from?\" <asked friend> \"From [home],\" <said hero>" },
        { 1, "\"What is your name?\" <asked friend> \"[hero] [kin],\" was the answer." },
        { 1, "\"What is your trade?\" <asked friend> \"I am [job.a],\" <said hero>" },
        { 1, "\"What are you carrying?\" <asked friend> \"Only [look.a] [thing],\" <said hero>" },
        { 1, "\"Why are you so late?\" <asked friend> \"First I [did],\" <said hero>" } } },
    { "welcome", {
        { 1, "\"Then come in,\" <said friend>" },
        { 1, "[friend] opened the gate with [=colour.a] key." },
        { 1, "\"Welcome to [goal], [hero] of [home],\" <said friend>" },
        { 1, "\"Every [job] from [home] is welcome in [goal],\" <said friend>" } } },

    /* A song is repeated. */
    { "sung", {
        { 1, "For hours [hero.he] sang \"[a] [b] [c] [d]\" to [hero.his] [=animal]." },
        { 1, "\"[a] [b] [c] [d],\" [hero.he] sang to [=coat.a] [=animal]." },
        { 1, "That song, \"[a] [b] [c] [d],\" made [hero.him] [=mood] and [=mood]." } } },
    { "taught", {
        { 1, "\"What are you singing?\" asked [third=person]. \"[a] [b] [c] [d],\" <said hero>" },
        { 1, "\"Sing it backwards!\" said [third=person]. \"[d] [c] [b] [a],\" sang [hero]." },
        { 1, "[third=person] the [=nature] [=job] learned it from [hero.him]: \"[a] [b] [c] [d]!\"" } } },

    /* Objects are traded, and the tale recounts who has what. */
    { "swap", {
        { 1, "[friend=person] the [=nature] [=job] wanted it and gave [hero.him] "
             "[look=look.a] [second=thing] for it." },
        { 1, "There [hero.he] gave it to [friend=person] the [=nature] [=job] and got [look=look.a] [second=thing]." },
        { 1, "\"Take [look=look.a] [second=thing] for it,\" said [friend=person] the [=nature] [=job], "
             "and [hero] agreed." } } },
    { "resold", {
        { 1, "Then [third=person] offered [hero.him] [last=thing.a] for the [look] [second], and [hero.he] took it." },
        { 1, "[third=person] saw the [second], liked it and paid with [last=thing.a]." },
        { 1, "Next, [hero.he] swapped the [look] [second] for [last=thing.a] that belonged to [third=person]." } } },
    { "recap", {
        { 1, "\"Who has your [thing] now?\" asked the [=job]. \"[friend],\" <said hero> "
             "\"And [third] has the [second].\"" },
        { 1, "So [friend] had the [thing], [third] had the [look] [second], and [hero] had the [last]." },
        { 1, "\"What did you get for the [thing]?\" asked the [=job]. \"First the [second] and then the [last],\" "
             "<said hero>" } } },
    { "bought", {
        { 1, "[hero.He] bought [thing=thing.a] for [n=digit] coins and [look=look.a] [second=thing] for [m=digit]." },
        { 1, "The [=job] sold [hero.him] [thing=thing.a] for [n=digit] coins "
             "and [look=look.a] [second=thing] for [m=digit]." } } },
    { "paid", {
        { 1, "That made [n+m] coins, and [20-n-m] were left." },
        { 1, "[hero.He] paid [n+m] coins and kept [20-n-m]." },
        { 1, "\"[n+m] coins, please,\" said the seller." } } },
    { "met", {
        { 1, "At home [friend=person] was waiting." },
        { 1, "On the way home [hero.he] met [friend=person] the [=nature] [=job]." },
        { 1, "[friend=person] the [=nature] [=job] was curious." } } },
    { "price", {
        { 1, "\"How much was the [look] [second]?\" <asked friend> \"[m] coins,\" <said hero>" },
        { 1, "\"What did the [thing] cost?\" <asked friend> \"[n] coins,\" <said hero>" },
        { 1, "\"How much money is left?\" <asked friend> \"[20-n-m] coins,\" <said hero>" } } },

    /* Shared by all tales. */
    { "busy", {
        { 3, "[*] <did>, <did> and <did>." },
        { 2, "Meanwhile [*] <did> and <did>." },
        { 1, "First [*] <did>, then [*.he] <did>." },
        { 1, "All day [*] <did> and <did>." },
        { 1, "The [=coat] [=animal] of the [=job] looked on while [*] <did>." },
        { 1, "[*] <did>. Then [*.he] had <meal> and felt [=mood]." },
        { 1, "Without a word, [*] <did> and <did>." } } },
    { "did", {
        { 7, "[=verb] [=look.a] [=object]" },
        { 3, "put [=look.a] [=object] <spot>" },
        { 2, "filled [=look.a] [=vessel] with [=food]" },
        { 2, "gave [=coat.a] [=animal] some [=food]" },
        { 2, "saw [=coat.a] [=animal] with [=coat.a] [=animal]" },
        { 1, "[=deed]" },
        { 1, "ate [=food] with the [=nature] [=job]" } } },
    { "meal", {
        { 1, "[=meal]" },
        { 3, "[=dish] with [=food]" } } },
    { "spot", {
        { 1, "[=near] the [=state] [=spot]" } } },
    { "where", {
        { 1, "[near=near] the [state=state] [spot=spot]" } } },
    { "said", {
        { 4, "said [*]." },
        { 6, "said [*] [=manner]." },
        { 1, "whispered [*]." },
        { 1, "called [*]." } } },
    { "asked", {
        { 3, "asked [*]." },
        { 4, "asked [*] [=manner]." },
        { 1, "[*] wanted to know." } } },
    { "ending", {
        { 1, "From that day on, [hero] and [friend] were [=mood] and [=mood]." },
        { 2, "Then [hero] and [friend] sat down <spot> and had <meal>." },
        { 2, "So [hero] was [=mood], [friend] was [=mood], and even the [=nature] [=job] was [=mood]." },
        { 1, "That night [hero] dreamt of [=look.a] [=object], and [friend] of [=coat.a] [=animal]." },
        { 1, "[hero] and [friend] went home, [=mood] and [=mood]." },
        { 1, "In [home] [hero] [kin] and [friend] are still known as "
             "the [=mood] [=animal] and the [=mood] [=animal]." },
        { 1, "\"You are [=nature.a] and [=nature] friend,\" <said hero>" },
        { 1, "For supper [hero] had <meal>, and [friend] had <meal>." } } },
};
