// Pictures as tensors: size, layout, channels and normalisation.

import { newData } from "./tensors.js";

/** The most pixels of a side where the model leaves the size open. */
const MOST_SIDE = 1024;
const IMAGENET = { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };

export const LAYOUTS = { HW: "height x width (grey)", CHW: "channels first (NCHW)", HWC: "channels last (NHWC)" };
export const NORMALISATIONS = {
  bytes: "0 to 255", unit: "0 to 1", signed: "-1 to 1", imagenet: "ImageNet's mean and deviation", range: "0 to a maximum",
};

/** The layouts that dims (without the batch) can have; empty: this is no picture. */
export function layoutsOf(dims) {
  const isSide = (size) => size === -1 || size >= 8;
  const isChannels = (size) => size === -1 || [1, 3, 4].includes(size);
  if (dims.length === 2) return dims.every(isSide) && !dims.every((size) => size === -1) ? ["HW"] : [];
  if (dims.length !== 3) return [];
  return [
    ...(isChannels(dims[0]) && isSide(dims[1]) && isSide(dims[2]) ? ["CHW"] : []),
    ...(isChannels(dims[2]) && isSide(dims[0]) && isSide(dims[1]) ? ["HWC"] : []),
  ];
}

/** Height, width and channels of dims in a layout; -1: open. */
function sizesOf(dims, layout) {
  if (layout === "HW") return { height: dims[0], width: dims[1], channels: 1 };
  const [channels, height, width] = layout === "CHW" ? dims : [dims[2], dims[0], dims[1]];
  return { height, width, channels: channels === -1 ? 3 : channels };
}

/** How a channel's value (0 to 255) becomes an element. */
function scaling({ normalisation, maximum }, channel) {
  if (normalisation === "unit") return (value) => value / 255;
  if (normalisation === "signed") return (value) => value / 127.5 - 1;
  if (normalisation === "range") return (value) => (value / 255) * maximum;
  if (normalisation === "imagenet") {
    const { mean, deviation } = IMAGENET;
    return (value) => (value / 255 - mean[channel % 3]) / deviation[channel % 3];
  }
  return (value) => value;
}

/**
 * The tensor of a picture, scaled to the model's size, and the picture as the model gets it.
 *
 * settings: { layout, normalisation, maximum, isInverted, isSwapped }.
 */
export function pictureTensor(bitmap, { name, datatype, dims }, settings, isBatched) {
  const sizes = sizesOf(dims, settings.layout);
  const shrink = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
  const height = sizes.height === -1 ? Math.max(1, Math.round(bitmap.height * shrink)) : sizes.height;
  const width = sizes.width === -1 ? Math.max(1, Math.round(bitmap.width * shrink)) : sizes.width;
  const { channels } = sizes;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height);
  const rgba = pixels.data;
  if (settings.isInverted) {
    for (let at = 0; at < rgba.length; at++) if (at % 4 !== 3) rgba[at] = 255 - rgba[at];
    context.putImageData(pixels, 0, 0);
  }
  const data = newData(datatype, height * width * channels);
  const isWhole = !(datatype.startsWith("FP") || datatype === "BF16");
  for (let channel = 0; channel < channels; channel++) {
    const scale = scaling(settings, channel);
    const source = settings.isSwapped && channel < 3 ? 2 - channel : channel;
    for (let pixel = 0; pixel < height * width; pixel++) {
      const at = 4 * pixel;
      // ITU-R BT.601, as Pillow converts to grey.
      const value = channels === 1 ? 0.299 * rgba[at] + 0.587 * rgba[at + 1] + 0.114 * rgba[at + 2] : rgba[at + source];
      const element = isWhole ? Math.round(scale(value)) : scale(value);
      data[settings.layout === "HWC" ? pixel * channels + channel : channel * height * width + pixel] =
        datatype.endsWith("INT64") ? BigInt(element) : element;
    }
  }
  const shape = { HW: [height, width], CHW: [channels, height, width], HWC: [height, width, channels] }[settings.layout];
  return { tensor: { name, datatype, shape: isBatched ? [1, ...shape] : shape, data }, canvas };
}
