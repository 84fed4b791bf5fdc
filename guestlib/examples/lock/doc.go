// Command lock is a lock, and a counter behind it, in a server's memory. Clients take the lock with
// CMP_SWAP, count with a READ and a WRITE, which together are anything but atomic, and release it;
// the server's processor has no part in it. Run several clients at once.
package main
