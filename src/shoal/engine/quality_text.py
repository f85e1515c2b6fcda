"""English prose in the public domain, for `shoal quality` where no other text is given.

Passages quoted from memory, so that a word may differ from one edition or another; what they are used for is
unaffected.
"""

from collections.abc import Mapping

PASSAGES: Mapping[str, str] = {
    "Lewis Carroll, Alice's Adventures in Wonderland (1865), chapter 1": """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or
twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and
what is the use of a book," thought Alice, "without pictures or conversations?" So she was considering in her
own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of
making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White
Rabbit with pink eyes ran close by her. There was nothing so very remarkable in that; nor did Alice think it so
very much out of the way to hear the Rabbit say to itself, "Oh dear! Oh dear! I shall be late!" (when she
thought it over afterwards, it occurred to her that she ought to have wondered at this, but at the time it all
seemed quite natural); but when the Rabbit actually took a watch out of its waistcoat-pocket, and looked at it,
and then hurried on, Alice started to her feet, for it flashed across her mind that she had never before seen a
rabbit with either a waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she ran across
the field after it, and fortunately was just in time to see it pop down a large rabbit-hole under the hedge. In
another moment down went Alice after it, never once considering how in the world she was to get out again. The
rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that Alice
had not a moment to think about stopping herself before she found herself falling down a very deep well.""",
    "Jane Austen, Pride and Prejudice (1813), chapter 1": """\
It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a
wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood,
this truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful
property of some one or other of their daughters. "My dear Mr. Bennet," said his lady to him one day, "have you
heard that Netherfield Park is let at last?" Mr. Bennet replied that he had not. "But it is," returned she; "for
Mrs. Long has just been here, and she told me all about it." Mr. Bennet made no answer. "Do not you want to know
who has taken it?" cried his wife impatiently. "You want to tell me, and I have no objection to hearing it."
This was invitation enough. "Why, my dear, you must know, Mrs. Long says that Netherfield is taken by a young
man of large fortune from the north of England; that he came down on Monday in a chaise and four to see the
place, and was so much delighted with it that he agreed with Mr. Morris immediately; that he is to take
possession before Michaelmas, and some of his servants are to be in the house by the end of next week." "What is
his name?" "Bingley." "Is he married or single?" "Oh! single, my dear, to be sure! A single man of large
fortune; four or five thousand a year. What a fine thing for our girls!" "How so? how can it affect them?" "My
dear Mr. Bennet," replied his wife, "how can you be so tiresome! You must know that I am thinking of his
marrying one of them." "Is that his design in settling here?" "Design! nonsense, how can you talk so! But it is
very likely that he may fall in love with one of them, and therefore you must visit him as soon as he comes.\"""",
    "Charles Darwin, On the Origin of Species (1859), introduction": """\
When on board H.M.S. Beagle, as naturalist, I was much struck with certain facts in the distribution of the
inhabitants of South America, and in the geological relations of the present to the past inhabitants of that
continent. These facts seemed to me to throw some light on the origin of species, that mystery of mysteries, as
it has been called by one of our greatest philosophers. On my return home, it occurred to me, in 1837, that
something might perhaps be made out on this question by patiently accumulating and reflecting on all sorts of
facts which could possibly have any bearing on it. After five years' work I allowed myself to speculate on the
subject, and drew up some short notes; these I enlarged in 1844 into a sketch of the conclusions, which then
seemed to me probable: from that period to the present day I have steadily pursued the same object. I hope that
I may be excused for entering on these personal details, as I give them to show that I have not been hasty in
coming to a decision.""",
    "Charles Darwin, On the Origin of Species (1859), conclusion": """\
It is interesting to contemplate an entangled bank, clothed with many plants of many kinds, with birds singing
on the bushes, with various insects flitting about, and with worms crawling through the damp earth, and to
reflect that these elaborately constructed forms, so different from each other, and dependent on each other in
so complex a manner, have all been produced by laws acting around us. Thus, from the war of nature, from famine
and death, the most exalted object which we are capable of conceiving, namely, the production of the higher
animals, directly follows. There is grandeur in this view of life, with its several powers, having been
originally breathed into a few forms or into one; and that, whilst this planet has gone cycling on according to
the fixed law of gravity, from so simple a beginning endless forms most beautiful and most wonderful have been,
and are being, evolved.""",
    "Herman Melville, Moby-Dick (1851), chapter 1": """\
Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and
nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of the
world. It is a way I have of driving off the spleen, and regulating the circulation. Whenever I find myself
growing grim about the mouth; whenever it is a damp, drizzly November in my soul; whenever I find myself
involuntarily pausing before coffin warehouses, and bringing up the rear of every funeral I meet; and especially
whenever my hypos get such an upper hand of me, that it requires a strong moral principle to prevent me from
deliberately stepping into the street, and methodically knocking people's hats off, then, I account it high time
to get to sea as soon as I can. This is my substitute for pistol and ball. With a philosophical flourish Cato
throws himself upon his sword; I quietly take to the ship. There is nothing surprising in this. If they but knew
it, almost all men in their degree, some time or other, cherish very nearly the same feelings towards the ocean
with me.""",
    "Charles Dickens, A Tale of Two Cities (1859), chapter 1": """\
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it
was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of
Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing
before us, we were all going direct to Heaven, we were all going direct the other way; in short, the period was
so far like the present period, that some of its noisiest authorities insisted on its being received, for good
or for evil, in the superlative degree of comparison only. There were a king with a large jaw and a queen with a
plain face, on the throne of England; there were a king with a large jaw and a queen with a fair face, on the
throne of France. In both countries it was clearer than crystal to the lords of the State preserves of loaves
and fishes, that things in general were settled for ever.""",
    "Arthur Conan Doyle, A Scandal in Bohemia (1891)": """\
To Sherlock Holmes she is always the woman. I have seldom heard him mention her under any other name. In his
eyes she eclipses and predominates the whole of her sex. It was not that he felt any emotion akin to love for
Irene Adler. All emotions, and that one particularly, were abhorrent to his cold, precise but admirably balanced
mind. He was, I take it, the most perfect reasoning and observing machine that the world has seen, but as a
lover he would have placed himself in a false position. He never spoke of the softer passions, save with a gibe
and a sneer. They were admirable things for the observer, excellent for drawing the veil from men's motives and
actions. But for the trained reasoner to admit such intrusions into his own delicate and finely adjusted
temperament was to introduce a distracting factor which might throw a doubt upon all his mental results. Grit in
a sensitive instrument, or a crack in one of his own high-power lenses, would not be more disturbing than a
strong emotion in a nature such as his.""",
    "Abraham Lincoln, address at Gettysburg (1863)": """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty,
and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war,
testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great
battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those
who here gave their lives that that nation might live. It is altogether fitting and proper that we should do
this. But, in a larger sense, we can not dedicate, we can not consecrate, we can not hallow this ground. The
brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or detract.
The world will little note, nor long remember what we say here, but it can never forget what they did here.""",
    "H. G. Wells, The War of the Worlds (1898), chapter 1": """\
No one would have believed in the last years of the nineteenth century that this world was being watched keenly
and closely by intelligences greater than man's and yet as mortal as his own; that as men busied themselves
about their various concerns they were scrutinised and studied, perhaps almost as narrowly as a man with a
microscope might scrutinise the transient creatures that swarm and multiply in a drop of water. With infinite
complacency men went to and fro over this globe about their little affairs, serene in their assurance of their
empire over matter. It is possible that the infusoria under the microscope do the same. No one gave a thought to
the older worlds of space as sources of human danger, or thought of them only to dismiss the idea of life upon
them as impossible or improbable. It is curious to recall some of the mental habits of those departed days. At
most terrestrial men fancied there might be other men upon Mars, perhaps inferior to themselves and ready to
welcome a missionary enterprise. Yet across the gulf of space, minds that are to our minds as ours are to those
of the beasts that perish, intellects vast and cool and unsympathetic, regarded this earth with envious eyes,
and slowly and surely drew their plans against us.""",
    "Kenneth Grahame, The Wind in the Willows (1908), chapter 1": """\
The Mole had been working very hard all the morning, spring-cleaning his little home. First with brooms, then
with dusters; then on ladders and steps and chairs, with a brush and a pail of whitewash; till he had dust in
his throat and eyes, and splashes of whitewash all over his black fur, and an aching back and weary arms. Spring
was moving in the air above and in the earth below and around him, penetrating even his dark and lowly little
house with its spirit of divine discontent and longing. It was small wonder, then, that he suddenly flung down
his brush on the floor, said "Bother!" and "O blow!" and also "Hang spring-cleaning!" and bolted out of the
house without even waiting to put on his coat. Something up above was calling him imperiously, and he made for
the steep little tunnel which answered in his case to the gravelled carriage-drive owned by animals whose
residences are nearer to the sun and air.""",
    "Henry David Thoreau, Walden (1854)": """\
I went to the woods because I wished to live deliberately, to front only the essential facts of life, and see if
I could not learn what it had to teach, and not, when I came to die, discover that I had not lived. I did not
wish to live what was not life, living is so dear; nor did I wish to practise resignation, unless it was quite
necessary. I wanted to live deep and suck out all the marrow of life, to live so sturdily and Spartan-like as to
put to rout all that was not life, to cut a broad swath and shave close, to drive life into a corner, and reduce
it to its lowest terms, and, if it proved to be mean, why then to get the whole and genuine meanness of it, and
publish its meanness to the world; or if it were sublime, to know it by experience, and be able to give a true
account of it in my next excursion.""",
}


def passages() -> tuple[str, ...]:
    """The texts, each on one line."""
    return tuple(text.replace("\n", " ") for text in PASSAGES.values())
