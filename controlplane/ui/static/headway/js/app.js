// What every page has: colours, shortcuts, confirmations, copying, rows, forms, relative times.

import { startConfirmations } from "./confirm.js";
import { startForms } from "./forms.js";
import { startKeys } from "./keys.js";
import { startRows } from "./rows.js";
import { startTheme } from "./theme.js";
import { startCopying, startTimes } from "./small.js";

startTheme();
startKeys();
startRows();
startConfirmations();
startForms();
startCopying();
startTimes();

// On a narrow screen the navigation scrolls sideways: bring the present place into view.
const here = document.querySelector(".nav [aria-current]");
const bar = here?.closest("nav");
if (bar && bar.scrollWidth > bar.clientWidth) bar.scrollLeft = here.offsetLeft - bar.clientWidth / 2 + here.offsetWidth / 2;
