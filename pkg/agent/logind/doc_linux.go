/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package logind delays the shutdown of a Linux machine: it holds a delay lock of systemd-logind,
// reports when logind wants to shut the machine down, and releases the lock when it may.
//
// The lock is the writing end of a named pipe (/run/systemd/inhibit/N.ref). logind starts no
// shutdown as long as a process has it open, for at most InhibitDelayMaxSec, and refuses new locks
// while a shutdown is pending. So the lock must outlive this process: systemd stores a copy, and
// the path of the pipe is reported, by which the next process opens it again.
package logind
