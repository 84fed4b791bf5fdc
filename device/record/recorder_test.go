package record

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// made records two shards of some Steps and returns the file.
func made(t testing.TB, limit int64) (path string, r *Recorder) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "recording")
	r, err := Create(Config{File: path, Limit: limit, Text: "nic: {host: 1}\n"}, Header{Version: "test", NIC: "nic1", Shards: 2, Started: 5})
	if err != nil {
		t.Fatal(err)
	}
	for step := range int64(100) {
		for shard := range 2 {
			on := r.Tape(shard)
			if on.Records() {
				on.Begin(tape.Step, step)
				on.PutUint(uint64(shard))
				on.PutBytes(make([]byte, 50_000))
			}
			on.Check()
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return path, r
}

// steps plays a shard and returns how many Steps there are.
func steps(t testing.TB, r *Recording, shard int) (n int, err error) {
	on := r.Tape(shard)
	for {
		if _, err := on.Next(); err != nil {
			return n, err
		}
		if now := on.Begun(tape.Step); now != int64(n) {
			t.Fatalf("Step %d is at %d", n, now)
		}
		if is := on.Uint(); is != uint64(shard) {
			t.Fatalf("shard %d's tape is of %d", shard, is)
		}
		on.Bytes()
		on.Check()
		n++
	}
}

// TestEachShardsTapeComesOutOfTheFile as it was written, with the header.
func TestEachShardsTapeComesOutOfTheFile(t *testing.T) {
	path, rec := made(t, 1<<30)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Read(f)
	if err != nil || r.NIC != "nic1" || r.Shards != 2 || r.Config != "nic: {host: 1}\n" || rec.Why() != "" {
		t.Fatalf("%+v, %v, %q", r, err, rec.Why())
	}
	for shard := range 2 {
		if n, err := steps(t, r, shard); n != 100 || err != io.EOF {
			t.Errorf("shard %d: %d Steps, %v", shard, n, err)
		}
	}
	if st, _ := f.Stat(); st.Mode() != 0o600 {
		t.Errorf("mode %v: others may read what guests sent", st.Mode())
	}
}

// TestTapesInMemoryAreSaved as a file like one that was recorded.
func TestTapesInMemoryAreSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "saved")
	size, err := Save(path, Header{Shards: 2, NIC: "nic1", Payload: tape.Digest.String()}, [][][]byte{{{1}, {2, 3}}, {{4}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) != size {
		t.Fatalf("%d bytes of %d, %v", len(b), size, err)
	}
	r, err := Read(bytes.NewReader(b))
	if err != nil || r.NIC != "nic1" {
		t.Fatalf("%+v, %v", r, err)
	}
	at, got := r.at, []chunk(nil)
	for {
		c, err := r.chunk(&at)
		if err != nil {
			break
		}
		got = append(got, c)
	}
	if want := []chunk{{0, []byte{1}}, {0, []byte{2, 3}}, {1, []byte{4}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestARecordingStopsAtItsLimit, and what it has is good.
func TestARecordingStopsAtItsLimit(t *testing.T) {
	path, rec := made(t, 3<<20)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 6<<20 || !strings.Contains(rec.Why(), "bytes") {
		t.Errorf("%d bytes, %q", len(b), rec.Why())
	}
	r, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := steps(t, r, 0); n == 0 || n == 100 || err != io.EOF {
		t.Errorf("%d Steps, %v", n, err)
	}
}

func TestAFileThatExistsIsNotOverwritten(t *testing.T) {
	path, _ := made(t, 1<<30)
	if _, err := Create(Config{File: path, Limit: 1}, Header{Shards: 1}); err == nil {
		t.Error("it was")
	}
}

// TestADamagedFileIsRefused: a changed byte is found, and a file that is cut ends early.
func TestADamagedFileIsRefused(t *testing.T) {
	path, _ := made(t, 1<<30)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, len(magic) - 1, len(magic) + 1, len(magic) + 8} {
		b := bytes.Clone(whole)
		b[at] ^= 0x80
		if _, err := Read(bytes.NewReader(b)); err == nil {
			t.Errorf("byte %d may be anything", at)
		}
	}
	b := bytes.Clone(whole)
	b[len(b)-100] ^= 1
	r, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	_, first := steps(t, r, 0)
	_, second := steps(t, r, 1)
	if first == io.EOF && second == io.EOF {
		t.Error("a changed byte is not noticed")
	}
	for _, n := range []int{0, 5, len(magic) + 4, len(magic) + 10, len(whole) / 2, len(whole) - 1} {
		r, err := Read(bytes.NewReader(whole[:n]))
		if err != nil {
			continue
		}
		if n, err := steps(t, r, 0); n == 100 && err != io.EOF {
			t.Errorf("%d Steps, %v", n, err)
		}
	}
}

// FuzzRead: no file ends the program, or takes memory beyond its limits.
func FuzzRead(f *testing.F) {
	text := []byte(`{"Shards":1}`)
	b := binary.LittleEndian.AppendUint32(bytes.Clone(magic), uint32(len(text)))
	b = binary.LittleEndian.AppendUint32(append(b, text...), crc32.Checksum(text, castagnoli))
	f.Add(append(b, make([]byte, chunkHeader)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		on := r.Tape(0)
		for err == nil {
			if _, err = on.Next(); on.Left() > len(b) {
				t.Fatal("a chunk that is longer than the file")
			}
		}
	})
}
