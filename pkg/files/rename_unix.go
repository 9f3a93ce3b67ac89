// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package files

import "golang.org/x/sys/unix"

func renameNew(_, _ string) error { return unix.ENOSYS }
