package trident.stores;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3: one conditional PUT (If-None-Match: *) makes an entry, so that of two writers one wins, whichever
 * processes they are in. Needs Hadoop 3.4.2 or later. Delta's own log store for s3a keeps apart the threads of one JVM.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

    public ConditionalLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        // Whole before anything is opened: closing a stream behind an error of the iterator's would make half an entry.
        ByteArrayOutputStream entry = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            entry.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        FileSystem files = path.getFileSystem(conf);
        FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).overwrite(overwrite);
        if (!overwrite) {
            builder.must(CONDITIONAL, true);
        }
        try (FSDataOutputStream out = builder.build()) {
            entry.writeTo(out);
        } catch (IOException error) {
            if (!overwrite && isTaken(error)) {
                throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(error);
            }
            throw error;
        }
    }

    private static boolean isTaken(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            String name = each.getClass().getSimpleName();
            if (name.equals("FileAlreadyExistsException") || name.equals("RemoteFileChangedException")) {
                return true;
            }
        }
        return false;
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return false;
    }
}
