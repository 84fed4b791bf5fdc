package virtqueue_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

func BenchmarkRing(b *testing.B) {
	for _, c := range kinds() {
		c.Size = 256
		b.Run(fmt.Sprintf("packed=%v,indirect=%v,event=%v", c.Packed, c.Indirect, c.EventIdx), func(b *testing.B) {
			mem := pages(b, memSize)
			d := vhosttest.NewQueue(mem, c)
			r := newRing(b, mem, config(d))
			bufs := []vhosttest.Buffer{{Addr: bufAt, Len: 72}}
			for n := 0; n < b.N; n += 32 {
				for range 32 {
					d.Add(bufs...)
				}
				d.Show()
				for range 32 {
					if ch, err := r.Take(plenty()); ch == nil || err != nil {
						b.Fatal(err)
					}
					r.Done(0)
				}
				r.Publish()
				for range 32 {
					d.Used()
				}
			}
		})
	}
}
