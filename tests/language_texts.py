"""Small texts in several languages for the tests, made of word lists: who, where, does, what."""

from __future__ import annotations

import random

LISTS = {
    "chinese": (
        "老师|农夫|医生|画家|水手|面包师|歌手|司机|作家|猎人|邻居|奶奶",
        "每天早上在河边|冬天以前在教堂后面|在老城里|安静的晚上在大树下|战争结束以后在市场上|昨天在火车站",
        "找到了|画了|带走了|看着|打扫了|卖掉了|藏起了|打破了|修好了|买了",
        "一张旧桌子|三扇窗户|漂亮的花园|妹妹的信|一篮苹果|那座石桥|一面镜子|两支蜡烛|木头梯子|绿色的瓶子",
        "{0}{1}{2}{3}。",
        "，",  # noqa: RUF001
    ),
    "japanese": (
        "先生は|農家は|医者は|画家は|船乗りは|パン屋は|歌手は|運転手は|作家は|隣のおばあさんは",
        "毎朝川のそばで|冬の前に教会の後ろで|古い町で|静かな夜に大きな木の下で|市場で|昨日駅前のレストランで",
        "見つけた|描いた|運んだ|眺めた|掃除した|売った|隠した|壊した|直した|買った",
        "古いテーブルを|三つの窓を|きれいな庭を|妹の手紙を|りんごのかごを|石の橋を|鏡を|ろうそくを|はしごを|緑のびんを",
        "{0}{1}{3}{2}。",
        "、",
    ),
    "arabic": (
        "المعلم|الفلاح|الطبيب|الرسام|البحار|الخباز|المغني|السائق|الكاتب|الصياد",
        "قرب النهر|خلف المسجد|في المدينة القديمة|تحت الشجرة الكبيرة|في السوق|أمام المحطة",
        "وجد|رسم|حمل|رأى|نظّف|باع|أخفى|كسر|أصلح|اشترى",
        "الطاولة القديمة|ثلاث نوافذ|الحديقة الجميلة|رسالة أخته|سلة التفاح|الجسر الحجري|المرآة|شمعتين|السلّم|"
        "الزجاجة الخضراء",
        "{2} {0} {3} {1}.",
        "، ",
    ),
    "finnish": (
        "opettaja|maanviljelijä|lääkäri|taidemaalari|merimies|leipuri|laulaja|kuljettaja|kirjailija|"
        "metsästäjä|Väinö|Äiti",
        "joen lähellä|kirkon takana|vanhassa kaupungissa|suuren männyn alla|torilla|hiljaisena yönä|Jyväskylässä",
        "löytää|maalaa|kantaa|näkee|siivoaa|myy|piilottaa|särkee|korjaa|ostaa",
        "vanhan pöydän|kolme ikkunaa|kauniin pihan|sisarensa kirjeen|korillisen hyviä omenoita|kivisillan|"
        "peilin|kynttilöitä|tikkaat|vihreän pullon",
        "{0} {2} {3} {1}.",
        ", ja ",
    ),
    "german": (
        "Der Lehrer|Der Bauer|Die Ärztin|Die Malerin|Der Matrose|Der Bäcker|Die Sängerin|Der Fahrer|"
        "Die Jägerin|Frau Müller",
        "am Fluß|hinter der Kirche|in der Altstadt|unter dem großen Baum|auf dem Markt|jeden Morgen|in Köln",
        "findet|malt|trägt|sieht|säubert|verkauft|versteckt|zerbricht|repariert|kauft",
        "den alten Tisch|drei Fenster|den schönen Garten|den Brief der Schwester|einen Korb voll Äpfel|"
        "die Steinbrücke|den Spiegel|zwei Kerzen|die Leiter|die grüne Flasche",
        "{0} {2} {1} {3}.",
        ", und ",
    ),
    "hindi": (
        "शिक्षक|किसान|डॉक्टर|चित्रकार|नाविक|बेकर|गायक|चालक|लेखक|शिकारी",
        "नदी के पास|मंदिर के पीछे|पुराने शहर में|बड़े पेड़ के नीचे|बाज़ार में|हर सुबह",
        "ढूँढता है|बनाता है|उठाता है|देखता है|साफ़ करता है|बेचता है|छिपाता है|तोड़ता है|ठीक करता है|खरीदता है",
        "पुरानी मेज़|तीन खिड़कियाँ|सुंदर बगीचा|बहन की चिट्ठी|सेबों की टोकरी|पत्थर का पुल|आईना|दो मोमबत्तियाँ|सीढ़ी|हरी बोतल",
        "{0} {1} {3} {2}।",
        " और ",
    ),
    "thai": (
        "ครู|ชาวนา|หมอ|ช่างวาด|กะลาสี|คนทำขนมปัง|นักร้อง|คนขับรถ|นักเขียน|คุณยาย",
        "ใกล้แม่น้ำ|หลังวัด|ในเมืองเก่า|ใต้ต้นไม้ใหญ่|ที่ตลาด|ทุกเช้า",
        "พบ|วาด|ถือ|มองดู|ทำความสะอาด|ขาย|ซ่อน|ทำลาย|ซ่อม|ซื้อ",
        "โต๊ะเก่า|หน้าต่างสามบาน|สวนสวย|จดหมายของน้องสาว|ตะกร้าแอปเปิล|สะพานหิน|กระจก|เทียนสองเล่ม|บันได|ขวดสีเขียว",
        "{0}{2}{3}{1}",
        "และ",
    ),
}
"""For each language four lists, the pattern of a sentence, and what joins two halves."""


def language_texts(language: str, documents: int, sentences: int = 12, seed: int = 3) -> list[str]:
    """Documents of a small grammar; each sentence of Thai, which has no full stops, ends with a space."""
    *lists, pattern, joint = LISTS[language]
    words = [found.split("|") for found in lists]
    chance = random.Random(seed)

    def sentence() -> str:
        half = [pattern.format(*(chance.choice(some) for some in words)) for _ in range(chance.choice((1, 1, 2)))]
        return joint.join([part.rstrip(".\u3002\u0964") for part in half[:-1]] + half[-1:])

    gap = "" if language in ("chinese", "japanese") else " "
    return [gap.join(sentence() for _ in range(sentences)) for _ in range(documents)]
