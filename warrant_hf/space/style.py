"""How the page looks: colours that differ for the colour-blind too and keep their contrast by day and by night."""

from __future__ import annotations

import gradio as gr

# No font from elsewhere: nothing is fetched, and letters are there at once. Buttons dark enough for white letters.
THEME = gr.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]).set(
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover_dark="*primary_600",
    block_title_text_color="*body_text_color",
)

CSS = """
:root { --eg-attention: #0072b2; --eg-permission: #00785a; --eg-effective: #a23b7f; --eg-answer: #b35900;
        --eg-alert: #a61b1b; --eg-soft: #52525b; --eg-track: #e4e4e7; }
.dark { --eg-attention: #56b4e9; --eg-permission: #3ecf9f; --eg-effective: #e79ac7; --eg-answer: #ffb454;
        --eg-alert: #ff9a8a; --eg-soft: #b4b4bd; --eg-track: #3f3f46; }
.gradio-container main, .gradio-container .main { width: 100% !important; max-width: 1280px !important; }
.download-link { color: var(--eg-attention) !important; }
footer, footer *, .or { color: var(--eg-soft) !important; }
/* The names of Gradio for the empty part of the track, and for the numbers at its ends. */
.eg-slider { --slider-color: var(--eg-permission); --neutral-200: var(--eg-track);
             --body-text-color-subdued: var(--eg-soft); }
.eg-slider input[type=range]::-webkit-slider-thumb {
  background-color: var(--eg-permission) !important; box-shadow: 0 0 0 2px var(--block-background-fill) !important; }
.eg-slider input[type=range]::-moz-range-thumb {
  background-color: var(--eg-permission) !important; box-shadow: 0 0 0 2px var(--block-background-fill) !important; }
.eg-page h1 { margin: 0 0 .3rem; font-size: 1.6rem; line-height: 1.2; }
.eg-legend { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: .4rem 0 0; padding: 0; list-style: none; }
.eg-legend li { display: flex; gap: .45rem; align-items: baseline; margin: 0; }
.eg-swatch { flex: none; width: .8rem; height: .8rem; border-radius: 3px; }
.eg-attention { background: var(--eg-attention); } .eg-permission { background: var(--eg-permission); }
.eg-effective { background: var(--eg-effective); } .eg-answer { background: var(--eg-answer); }
.eg-headline { font-size: 1.1rem; margin: .1rem 0 .5rem; }
.eg-title { font-weight: 600; font-size: 1rem; margin: 0 0 .3rem; }
.eg-note, .eg-was, .eg-note bdi { color: var(--eg-soft); }
.eg-note { font-size: .875rem; margin: .25rem 0 0; }
.eg-asked { font-weight: 600; margin: 0; overflow-wrap: anywhere; } .eg-asked .eg-note { font-weight: 400; }
.eg-cards { list-style: none; margin: .5rem 0 0; padding: 0; }
.eg-card { padding: .6rem 0; margin: 0; border-top: 1px solid var(--border-color-primary); }
.eg-head { display: flex; flex-wrap: wrap; gap: .2rem .7rem; align-items: baseline; }
.eg-rank { font-size: 1.1rem; }
.eg-text { margin: .15rem 0 .3rem; overflow-wrap: anywhere; white-space: pre-wrap; }
.eg-verdict { font-size: .8rem; padding: 0 .5rem; border: 1px solid currentColor; border-radius: 99px; }
.eg-is-counts { color: var(--eg-permission); } .eg-is-blocked { color: var(--eg-alert); font-weight: 600; }
.eg-is-unread, .eg-is-aside { color: var(--eg-soft); }
.eg-line { display: grid; grid-template-columns: 9.4rem 1fr 7.6rem; gap: .6rem; align-items: center;
           font-size: .875rem; line-height: 1.4; }
.eg-track { position: relative; height: .7rem; border-radius: 3px; background: var(--eg-track); overflow: hidden; }
.eg-fill, .eg-old { position: absolute; inset: 0 auto 0 0; border-radius: 3px; }
.eg-old { outline: 1.5px dashed var(--eg-soft); outline-offset: -1.5px; }
.eg-mark { position: absolute; inset: 0 auto 0 0; width: 2px; margin-left: -1px; background: var(--body-text-color);
           box-shadow: 0 0 0 1px var(--background-fill-primary); }
.eg-value, .eg-table td { font-variant-numeric: tabular-nums; }
/* Tables: they scroll within themselves, never the page. A shadow stands where there is more, and scrolls away: what
   covers it at an end is fixed to the table. */
.eg-scroll { overflow-x: auto; max-width: 100%; --eg-paper: var(--background-fill-primary);
  --eg-shadow: color-mix(in srgb, var(--eg-soft) 55%, transparent);
  background:
    linear-gradient(90deg, var(--eg-paper) 1rem, transparent) 0 0 / 2rem 100% local no-repeat,
    linear-gradient(270deg, var(--eg-paper) 1rem, transparent) 100% 0 / 2rem 100% local no-repeat,
    linear-gradient(90deg, var(--eg-shadow), transparent) 0 0 / .8rem 100% scroll no-repeat,
    linear-gradient(270deg, var(--eg-shadow), transparent) 100% 0 / .8rem 100% scroll no-repeat; }
.eg-scroll .eg-table { border-collapse: collapse; width: 100%; margin: 0; border: 0; font-size: .875rem; }
.eg-scroll .eg-table tr { border: 0; }
.eg-scroll .eg-table th, .eg-scroll .eg-table td {
  padding: .3rem .5rem; border: 0; border-bottom: 1px solid var(--border-color-primary); text-align: right;
  vertical-align: top; white-space: nowrap; }
.eg-scroll .eg-table thead th { font-weight: 600; vertical-align: bottom; white-space: normal; }
.eg-scroll .eg-table tbody th { font-weight: 400; }
.eg-scroll .eg-table th:first-child {
  text-align: left; white-space: normal; min-width: 9rem; overflow-wrap: anywhere; }
.eg-scroll .eg-table tbody .eg-differs { font-weight: 700; box-shadow: inset 3px 0 var(--eg-soft); }
.eg-said { margin: 0; padding-left: 1.2rem; list-style: disc; } .eg-said li { margin: .1rem 0; }
/* The same text three times. */
.eg-scales { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: 0 0 .6rem; padding: 0; list-style: none; }
.eg-three { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 1rem; margin-top: .6rem; }
.eg-three p { margin: 0 0 .6rem; line-height: 1.75; overflow-wrap: anywhere; white-space: pre-wrap; }
.eg-tok, .eg-cell { background: color-mix(in srgb, var(--eg-hue) calc(var(--s) * 1%), transparent); }
.eg-tok { border-radius: 2px; }
/* For screen readers. */
.eg-tok::after { content: " " attr(title) " "; position: absolute; width: 1px; height: 1px; overflow: hidden;
                 clip-path: inset(50%); white-space: nowrap; }
.eg-scroll .eg-heat { border-collapse: separate; border-spacing: 4px; }
.eg-in-attention { --eg-hue: var(--eg-attention); } .eg-in-permission { --eg-hue: var(--eg-permission); }
.eg-in-effective { --eg-hue: var(--eg-effective); }
.eg-scale { display: inline-block; width: 7rem; height: .8rem; border-radius: 3px; vertical-align: middle;
            border: 1px solid var(--border-color-primary);
            background: linear-gradient(90deg, transparent,
                                        color-mix(in srgb, var(--eg-hue) 55%, transparent)); }
.eg-answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); gap: 1rem; }
.eg-picture { overflow-x: auto; }
.eg-picture svg { width: 100%; min-width: 34rem; max-width: 800px; height: auto; color: var(--body-text-color); }
:focus-visible { outline: 2px solid var(--eg-attention) !important; outline-offset: 1px; }
@media (max-width: 640px) { .eg-three { grid-template-columns: 1fr; } }
@media (max-width: 480px) {
  .eg-line { grid-template-columns: 6.2rem 1fr 3.2rem; gap: .4rem; }
  .eg-line .eg-was { display: block; }
  .eg-scroll .eg-table { font-size: .8rem; }
  .eg-scroll .eg-table th, .eg-scroll .eg-table td { padding: .3rem; }
  .eg-scroll .eg-table th:first-child { min-width: 5.5rem; }
}
"""
