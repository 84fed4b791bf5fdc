// Package devicetest has what the tests of NICs and of shards share: a pair's configurations, in
// both versions of IP, and what frames between them must look like.
package devicetest
