"""The table of the zoo: every architecture, by name."""

from tests.zoo import audio, decoders, encoder_decoders, multimodal, text_encoders, vision

ARCHITECTURES = {
    architecture.model: architecture
    for room in (text_encoders, decoders, encoder_decoders, vision, audio, multimodal)
    for architecture in room.ARCHITECTURES
}
