package vfiouser

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// format is one layout: its golden bytes, laid out by hand from vfio-user.rst and linux/vfio.h, and
// what they mean.
type format struct {
	name   string
	golden string
	value  any
	parse  func([]byte) (any, error)
	encode func(any) []byte
}

var formats = []format{
	{
		"header", "3412 0900 24000000 11000000 16000000",
		Header{0x1234, RegionRead, 36, FlagReply | FlagNoReply, 22},
		func(b []byte) (any, error) { return ParseHeader(b) },
		func(v any) []byte { h := v.(Header); return h.Append(nil) },
	},
	{
		"DMA_MAP", "20000000 03000000 0000001000000000 0000008000000000 0000200000000000",
		Map{MapRead | MapWrite, 0x10000000, Range{0x80000000, 0x200000}},
		func(b []byte) (any, error) { return ParseMap(b) },
		func(v any) []byte { m := v.(Map); return m.Append(nil) },
	},
	{
		"DMA_UNMAP", "18000000 00000000 0000008000000000 0000200000000000",
		Unmap{0, Range{0x80000000, 0x200000}},
		func(b []byte) (any, error) { return ParseUnmap(b) },
		func(v any) []byte { u := v.(Unmap); return u.Append(nil) },
	},
	{
		"DEVICE_GET_INFO", "10000000 03000000 09000000 03000000",
		Info{InfoReset | InfoPCI, NumRegions, NumIRQs},
		func(b []byte) (any, error) { i, _, err := ParseInfo(b); return i, err },
		func(v any) []byte { i := v.(Info); return i.Append(nil) },
	},
	{
		"DEVICE_GET_REGION_INFO", "20000000 07000000 02000000 00000000 0000040000000000 0000001000000000",
		RegionInfo{7, 2, 0x40000, 0x10000000},
		func(b []byte) (any, error) { r, _, err := ParseRegionInfo(b); return r, err },
		func(v any) []byte { r := v.(RegionInfo); return r.Append(nil) },
	},
	{
		"DEVICE_GET_IRQ_INFO", "10000000 09000000 02000000 05000000",
		IRQInfo{IRQEventfd | irqNoResize, IRQMSIX, 5},
		func(b []byte) (any, error) { i, _, err := ParseIRQInfo(b); return i, err },
		func(v any) []byte { i := v.(IRQInfo); return i.Append(nil) },
	},
	{
		"DEVICE_SET_IRQS", "14000000 24000000 02000000 01000000 04000000",
		IRQSet{IRQDataEventfd | IRQTrigger, IRQMSIX, 1, 4},
		func(b []byte) (any, error) { return ParseIRQSet(b) },
		func(v any) []byte { s := v.(IRQSet); return s.Append(nil) },
	},
	{
		"region access", "0c10000000000000 02000000 04000000",
		Access{0x100c, 2, 4},
		func(b []byte) (any, error) { a, _, err := ParseAccess(b); return a, err },
		func(v any) []byte { a := v.(Access); return a.Append(nil) },
	},
	{
		// {"capabilities":{"max_msg_fds":8}} and a zero byte
		"VERSION", "0000 0000 7b226361706162696c6974696573223a7b226d61785f6d73675f666473223a387d7d00",
		Greeting{Capabilities: Capabilities{MaxFDs: 8}},
		func(b []byte) (any, error) { return ParseGreeting(b) },
		func(v any) []byte { g := v.(Greeting); return g.Append(nil) },
	},
}

// TestBodiesHaveTheirFormat: golden bytes are parsed and written unchanged, and fewer bytes are
// refused.
func TestBodiesHaveTheirFormat(t *testing.T) {
	for _, f := range formats {
		golden, err := hex.DecodeString(strings.ReplaceAll(f.golden, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.parse(golden)
		if err != nil || !reflect.DeepEqual(got, f.value) {
			t.Errorf("%s: %+v, %v; want %+v", f.name, got, err, f.value)
		}
		if b := f.encode(f.value); !bytes.Equal(b, golden) {
			t.Errorf("%s: encoded as %x, want %x", f.name, b, golden)
		}
		for n := range golden {
			if f.name == "VERSION" && n == versionSize {
				continue // the capabilities are optional
			}
			if _, err := f.parse(golden[:n:n]); err == nil {
				t.Errorf("%s: %d of %d bytes are read", f.name, n, len(golden))
			}
		}
	}
}

// TestImpossibleBodiesAreRefused: values that fit the layout but make no sense are refused.
func TestImpossibleBodiesAreRefused(t *testing.T) {
	top := ^uint64(0)
	for name, err := range map[string]error{
		"header shorter than itself": second(ParseHeader((&Header{Size: 15}).Append(nil))),
		"endless message":            second(ParseHeader((&Header{Size: maxMessage + 1}).Append(nil))),
		"message of type 2":          second(ParseHeader((&Header{Size: 16, Flags: 2}).Append(nil))),
		"map of nothing":             second(ParseMap((&Map{}).Append(nil))),
		"map that wraps":             second(ParseMap((&Map{Range: Range{top - 4095, 8192}}).Append(nil))),
		"huge map":                   second(ParseMap((&Map{Range: Range{0, 1 << 63}}).Append(nil))),
		"map past the file":          second(ParseMap((&Map{Offset: 1<<63 - 1, Range: Range{0, 4096}}).Append(nil))),
		"unmap of nothing":           second(ParseUnmap((&Unmap{}).Append(nil))),
		"unmap that wraps":           second(ParseUnmap((&Unmap{Range: Range{top, 2}}).Append(nil))),
		"too many vectors":           second(ParseIRQSet((&IRQSet{Count: 1<<16 + 1}).Append(nil))),
		"vectors that wrap":          second(ParseIRQSet((&IRQSet{Start: 1<<32 - 1, Count: 2}).Append(nil))),
		"huge access": func() error {
			_, _, err := ParseAccess((&Access{Count: MaxTransfer + 1}).Append(nil))
			return err
		}(),
		"version without its end": second(ParseGreeting([]byte("\x00\x00\x00\x00{}"))),
		"version that is no JSON": second(ParseGreeting([]byte("\x00\x00\x00\x00{\x00"))),
	} {
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestGreetingOfQEMUIsRead: the greeting of QEMU 11.1.3 is parsed.
func TestGreetingOfQEMUIsRead(t *testing.T) {
	b := append([]byte{0, 0, 0, 0}, `{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,"max_data_xfer_size":1048576,"migration":{"pgsize":4096,"max_bitmap_size":268435456},"write_multiple":true}}`...)
	g, err := ParseGreeting(append(b, 0))
	want := Capabilities{MaxFDs: 16, MaxTransfer: 1 << 20, MaxMaps: 65535, PageSizes: 4096}
	if err != nil || g.Capabilities != want {
		t.Errorf("%+v, %v", g, err)
	}
}

// FuzzFormats: what is read is written as the same value again.
func FuzzFormats(f *testing.F) {
	for i, format := range formats {
		f.Add(uint8(i), format.encode(format.value))
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		format := formats[int(which)%len(formats)]
		v, err := format.parse(b)
		if err != nil {
			return
		}
		again, err := format.parse(format.encode(v))
		if err != nil || !reflect.DeepEqual(again, v) {
			t.Errorf("%s: %+v, then %+v, %v", format.name, v, again, err)
		}
	})
}

// TestLimitsOfBodiesAreAccepted: the smallest and largest values that make sense are accepted.
func TestLimitsOfBodiesAreAccepted(t *testing.T) {
	const page = 4096
	top := ^uint64(0)
	for name, err := range map[string]error{
		"shortest message":            second(ParseHeader((&Header{Size: HeaderSize}).Append(nil))),
		"longest message":             second(ParseHeader((&Header{Size: maxMessage}).Append(nil))),
		"map up to the last address":  second(ParseMap((&Map{Range: Range{top - page, page}}).Append(nil))),
		"map up to the file's end":    second(ParseMap((&Map{Offset: 1<<63 - 1 - page, Range: Range{0, page}}).Append(nil))),
		"largest map":                 second(ParseMap((&Map{Range: Range{0, 1<<63 - 1}}).Append(nil))),
		"map of a byte":               second(ParseMap((&Map{Range: Range{0, 1}}).Append(nil))),
		"unmap up to the last one":    second(ParseUnmap((&Unmap{Range: Range{top, 1}}).Append(nil))),
		"unmap of all, without range": second(ParseUnmap((&Unmap{Flags: UnmapAll}).Append(nil))),
		"most vectors":                second(ParseIRQSet((&IRQSet{Count: 1 << 16}).Append(nil))),
		"last vector":                 second(ParseIRQSet((&IRQSet{Start: 1 << 16, Count: 1}).Append(nil))),
		"longest access": func() error {
			_, _, err := ParseAccess((&Access{Count: MaxTransfer}).Append(nil))
			return err
		}(),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
