package conn

import (
	"errors"
	"testing"
)

func TestEachCIDNamesItsShard(t *testing.T) {
	for _, shard := range []int{0, 3, MaxShards - 1} {
		c := NewCIDs(shard, 4)
		var cids []uint32
		for i := range uint32(4) {
			c.SetQuota(i, 4)
			cid, err := c.Alloc(i)
			if err != nil || ShardOf(cid) != shard || cid >= 1<<24 || indexOf(cid) != i {
				t.Fatalf("%#x, %v", cid, err)
			}
			cids = append(cids, cid)
		}
		c.SetQuota(4, 4)
		if _, err := c.Alloc(4); !errors.Is(err, ErrNoCID) {
			t.Error("more CIDs than slots")
		}
		c.Free(cids[2])
		c.Free(cids[2]) // twice is harmless
		c.Free(cids[1] ^ 1<<indexBits)
		if c.InUse() != 3 {
			t.Errorf("%d in use, want 3", c.InUse())
		}
		again, err := c.Alloc(2)
		if err != nil || again == cids[2] || indexOf(again) != indexOf(cids[2]) || ShardOf(again) != shard {
			t.Errorf("the slot's next CID is %#x after %#x, %v", again, cids[2], err)
		}
	}
}

// TestAFreedCIDRestsBehindTheOthers: the slot that has been free for longest is used first, also
// when the ring of free slots wraps. A CID is reused only after all generations.
func TestAFreedCIDRestsBehindTheOthers(t *testing.T) {
	c := NewCIDs(5, 8)
	c.SetQuota(1, 8)
	seen := map[uint32]bool{}
	for i := range uint32(8 << generationBits) {
		cid, err := c.Alloc(1)
		if err != nil || indexOf(cid) != i%8 || seen[cid] {
			t.Fatalf("%d: %#x, %v, seen %t", i, cid, err, seen[cid])
		}
		seen[cid] = true
		c.Free(cid)
	}
	if cid, _ := c.Alloc(1); !seen[cid] {
		t.Errorf("%#x is new: there are more than %d generations", cid, 1<<generationBits)
	}
}

func TestAFunctionHoldsNoMoreCIDsThanItsQuota(t *testing.T) {
	c := NewCIDs(0, 16)
	c.SetQuota(1, 2)
	for range 2 {
		if _, err := c.Alloc(1); err != nil {
			t.Fatal(err)
		}
	}
	for _, fn := range []uint32{1, 2} { // has all, has no quota
		if _, err := c.Alloc(fn); !errors.Is(err, ErrNoCID) {
			t.Errorf("function %d gets one more: %v", fn, err)
		}
	}
	if n, quota := c.Held(1); n != 2 || quota != 2 {
		t.Errorf("%d of %d", n, quota)
	}
	c.SetQuota(1, 0) // it is gone; what it has comes back by itself
	if len(c.quotas) != 0 || c.InUse() != 2 {
		t.Errorf("%d quotas, %d in use", len(c.quotas), c.InUse())
	}
}
