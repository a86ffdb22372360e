/* Making elements. Texts are set as text, whatever is in them. */

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} id @returns {HTMLElement} */
const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a child that is no element becomes text. */
const element = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

/** The same for a picture. */
const drawn = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

const filled = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
};

/** As long as fits, with the middle left out. */
const shortened = (text, most) => {
  const letters = [...text];
  if (letters.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - end).join("")}\u2026${letters.slice(letters.length - end).join("")}`;
};

const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

const duration = (seconds) => {
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const pair = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}:${pair(whole % 60)} min`;
  return `${Math.floor(whole / 3600)}:${pair(Math.floor(whole / 60) % 60)} h`;
};
