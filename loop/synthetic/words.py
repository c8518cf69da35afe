"""The words of the tiny tokenizer: common English, 2 to 9 letters, each a token of its own with the space before it."""

WORDS = """
able about above across act add after again age ago agree air all allow almost alone along also always among amount and
animal answer any apple area arm army around art ask autumn away baby back ball band bank base bath bean bear beat
beauty bed bee before begin behind bell below beside best better between big bird bit black blood blow blue board boat
body bone book born both bottle bottom bowl box boy branch brave bread break breath bridge bright bring broad brother
brown brush build burn busy butter button buy cake call calm camp canal card care carry cart case castle cat catch
cause cave cell center chain chair chalk chance change cheap cheese chest chief child church circle city class clay
clean clear clever climb clock close cloth cloud coal coast coat coin cold collar color comb come common cook cool
copper copy cord cork corn corner cost cotton count country course cover cow crack cream crop cross crowd crown cry cup
current curtain curve cut dance dark date day deal deep deer desert design desk different dinner direct dirt dish
distant dog door doubt down draw dream dress drink drive drop dry dust ear early earth east easy eat edge egg eight
elbow else empty end engine enough equal even evening event ever every exact example expert eye face fact fair fall
false family far farm fast father fear feather feed feel fence few field fifth fight figure fill find fine finger
finish fire first fish five flag flame flat flight floor flour flower fly fold follow food foot force forest fork form
forty forward four fox frame free fresh friend from front fruit full garden gate gentle gift girl give glad glass glove
goat gold good grain grand grass gray great green ground group grow guard guess guest guide gun hair half hall hammer
hand happy harbor hard harvest hat have head health hear heart heat heavy help hen here hero hide high hill history
hold hole home honey hook hope horn horse hot hour house how human hundred hunt hurry ice idea inch ink insect inside
iron island jar jewel join journey joy judge juice jump just keep kettle key kick kind king kitchen kite knee knife
knock know ladder lake lamb lamp land large last late laugh law lead leaf learn least leather leave left leg lemon less
letter level library lift light like limit line lion lip list listen little live lock long look loss lost loud love low
luck lunch machine mail main make man many map marble march mark market mask match meal mean measure meat meet melt
member mend metal middle mile milk mill mind mine minute mirror miss mist mix model moment money monkey month moon
morning most mother motion mount mouse mouth move much mud music nail name narrow nation near neat neck need needle
nerve nest net never new news next nice night nine noise none noon north nose note nothing number nurse nut oak ocean
odd offer office often oil old olive only open order other outside oven over owl own
"""
