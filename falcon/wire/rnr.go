package wire

// rnrTimeouts is the table of RNR NACK timeouts of Falcon §7.8 in units of 10 µs.
var rnrTimeouts = [32]int64{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimeout returns the delay in nanoseconds of a 5-bit RNR timeout index: 0 is the longest,
// 655.36 ms.
func RNRTimeout(index uint8) int64 { return rnrTimeouts[index&31] * 10_000 }
