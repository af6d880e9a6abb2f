"""Train a network in a loop of your own, as in Opacus' CIFAR-10 tutorial."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from dphead import PrivateTraining

MAX_GRAD_NORM, EPSILON, DELTA = 1.2, 8.0, 1e-5
EPOCHS, LR, BATCH_SIZE = 4, 2e-2, 256

# for CIFAR-10: torchvision's `data` (as n, channels, h, w) and `targets`
digits = load_digits()
images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
images, test_images = images[:1400], images[1400:]
labels, test_labels = labels[:1400], labels[1400:]

norm = nn.GroupNorm(4, 16)  # batch norms mix images
layers = (nn.Conv2d(1, 16, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
model = nn.Sequential(*layers, nn.Linear(144, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.RMSprop(model.parameters(), lr=LR)
private = PrivateTraining(
    model,
    lambda model, images, labels: criterion(model(images), labels),  # of one image
    (images, labels),
    classes=range(10),
    sampling_prob=BATCH_SIZE / len(images),
    steps=EPOCHS * len(images) // BATCH_SIZE,
    epsilon=EPSILON,
    delta=DELTA,
    clip_norm=MAX_GRAD_NORM,
)
with private as training:
    for _ in training:  # sets .grad
        optimizer.step()
accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean()
print(f"accuracy {accuracy:.2f} at epsilon {private.privacy.epsilon:.3f}")
