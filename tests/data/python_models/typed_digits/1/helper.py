def scores(image):
    return image.reshape(-1, 64)[:, :10] * 2
