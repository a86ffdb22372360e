// Creates elements. Text is inserted as text and never parsed as HTML: names and logs are untrusted.

function el(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function furnish(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "text") {
      element.textContent = visible(String(value));
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(2).filter(isShown).map(asNode));
  return element;
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

function asNode(child) {
  return child instanceof Node ? child : visible(String(child));
}

/** Invisible characters: controls, and marks that change the text direction. Line ends and tabs are allowed. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function visible(text) {
  return text.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function byId(id) {
  return document.getElementById(id);
}
