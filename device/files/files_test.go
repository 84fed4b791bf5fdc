package files_test

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/device/files"
)

// TestAReaderHasOneFileOrTheOther: while a file is replaced again and again, by two at a time, a reader
// gets one of them whole, and no other file is left.
func TestAReaderHasOneFileOrTheOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	whole := func(letter byte) []byte { return bytes.Repeat([]byte{letter}, 1<<16) }
	if err := files.Replace(path, whole('a'), 0o640); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for _, letter := range []byte("bc") {
		writers.Go(func() {
			for range 50 {
				if err := files.Replace(path, whole(letter), 0o640); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for read := true; read; {
		select {
		case <-done:
			read = false
		default:
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, whole(append(b, 0)[0])) {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o640 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestWhatCannotBeWrittenLeavesNothing: a folder has the place of the file.
func TestWhatCannotBeWrittenLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder")
	if err := os.MkdirAll(filepath.Join(path, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := files.Replace(path, []byte("b"), 0o644); err == nil {
		t.Error("a folder was replaced")
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestWhatRootWritesIsOfTheFoldersOwner: a NIC that runs as this owner reads it.
func TestWhatRootWritesIsOfTheFoldersOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 1234, 2345); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "file")
	if err := files.Replace(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if is := st.Sys().(*syscall.Stat_t); is.Uid != 1234 || is.Gid != 2345 {
		t.Errorf("it is of %d:%d", is.Uid, is.Gid)
	}
}
