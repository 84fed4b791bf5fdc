// Command fetch puts the guests' kernel and packages into this user's cache folder, so that no
// test, benchmark or demo downloads them while a clock runs.
package main
