// Command kv is a key-value store whose readers do not trouble the server: a get is one READ of the
// slot that a key hashes to, or a few if other keys were there first; a put is a message to the
// server, the only one that writes.
//
//	slot:  version │ key │ value │ version      all of 64 bytes; both versions are equal and even while nothing is being written
package main
