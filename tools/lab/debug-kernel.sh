#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Builds a kernel with the checkers of debug.config from the linux-source package of this root. Run inside the root by
# roots.sh (get stable-1-debug); takes 7 minutes and more on two processors.
#
# Result: /boot/vmlinuz-RELEASE, /usr/lib/modules/RELEASE/build, /.kz-release. Exit 1 with the missing options, where
# the configuration dropped some of the fragment.
set -eu
fragment=$(dirname "$0")/debug.config
cd /usr/src
archive=$(ls linux-source-*.tar.xz | head -n 1)
mkdir -p linux
tar -xf "$archive" -C linux --strip-components=1
rm -f "$archive"
cd linux
make -s tinyconfig
cat "$fragment" >>.config
make -s olddefconfig
missing=
for line in $(grep '^CONFIG_' "$fragment"); do
  grep -qxF "$line" .config || missing="$missing $line"
done
[ -z "$missing" ] || { echo "the configuration of $archive lost:$missing"; exit 1; }
make -j"$(nproc)" bzImage modules
release=$(make -s kernelrelease)
mkdir -p /boot "/usr/lib/modules/$release"
cp arch/x86/boot/bzImage "/boot/vmlinuz-$release"
ln -sfn /usr/src/linux "/usr/lib/modules/$release/build"
cp modules.builtin modules.builtin.modinfo modules.order "/usr/lib/modules/$release/" 2>/dev/null || :
: >"/usr/lib/modules/$release/modules.dep"
# What a module's build reads stays, and vmlinux for gdb; the rest is 1.5 GB.
find . -name '*.o' ! -path './scripts/*' ! -path './tools/*' -delete
find . -name '*.a' ! -path './tools/*' -delete
for folder in drivers fs net sound Documentation samples crypto security mm kernel block ipc certs rust virt; do
  find "$folder" -type f ! -name 'Kconfig*' ! -name 'Makefile*' -delete 2>/dev/null || :
done
find arch -mindepth 1 -maxdepth 1 -type d ! -name x86 -exec rm -rf {} +
echo "$release" >/.kz-release
